"""Files as editors, consoles and accidents leave them, and files that are no summary: what is said of each.

`fixtures/odd.json` has it, whole where it is short; WRITE=1 keeps a wanted change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Union

import pytest

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.reader import HOW, MAX_BYTES, read_summary
from tests.summaries.test_formats import TEXTS
from tests.support.kept import assert_kept, plain

KEPT = Path(__file__).parent / "fixtures" / "odd.json"
NO_SUMMARY: Dict[str, bytes] = {
    "nothing": b"", "blanks": b"  \n\n", "Python code": b"import torch\nprint(1)\n",
    "Python code after blanks": b"\n\nclass Net(nn.Module):\n    pass\n", "a docstring": b'"""Trains."""\n',
    "decorated": b"@cache\ndef f(): 1\n", "a Python script": b"#!/usr/bin/env python3\n",
    "JSON": b'{"layers": []}', "a notebook": b'{\n "cells": [],\n "nbformat": 4}', "a list": b"[\n",
    "a batch script": b"#!/bin/bash\n#SBATCH -n1\nsrun python train.py\n", "HTML": b"<html>",
    "an env script": b"#!/usr/bin/env zsh\n", "a tensor": b"tensor([1.])", "a short name": b"classy = 1\n",
    "a state_dict": b"OrderedDict([('conv1.weight', tensor([[1., 2.]]))])",
    "a traceback": b'Traceback (most recent call last):\n  File "a.py"\n',
    "a traceback further down": b'loading\nTraceback (most recent call last):\n  File "a.py"\nRuntimeError\n',
    "prose": b"My model has three layers.\n", "a pickle": b"\x80\x04\x00", "a program": b"\x7fELF\x00\x01",
    "a header alone": b"Layer (type)   Output Shape   Param #\n========\n",
    "a torch checkpoint": b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl",
    "a safetensors file": b'\x58\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32"}}',
    "too large": b"x" * (MAX_BYTES + 1), "a zero at the end": b"x" * 70_000 + b"\0",
}  # fmt: skip
# UTF-16 without its mark, more and less clearly so: zeros among a hundred high and a hundred low bytes.
for high in (70, 80, 81, 100):
    for low in (0, 19, 20, 30):
        pairs = zip([0] * high + [1] * (100 - high), [0] * low + [97] * (100 - low))
        turned = [(b, a) for a, b in pairs]
        NO_SUMMARY[f"{high} zeros and {low}"] = bytes(byte for pair in turned for byte in pair)
        NO_SUMMARY[f"{high} zeros and {low}, big"] = bytes(byte for pair in turned for byte in pair[::-1])


def _read(source: Union[str, Path]) -> str:
    try:
        found = read_summary(source)
    except SummaryError as error:
        return str(error).replace(str(source), "FILE").replace(HOW, "HOW")
    return repr(plain(found._replace(name="")))


def test_a_file_that_is_no_summary_is_named_for_what_it_is(tmp_path: Path) -> None:
    path, said = tmp_path / "summary.txt", {}
    for name, content in NO_SUMMARY.items():
        path.write_bytes(content)
        said[name] = _read(path)
        assert said[name].startswith("FILE: ")
    path.unlink()
    said["no file"] = _read(path)
    said["a folder"] = _read(tmp_path)
    os.mkfifo(path)
    said["a pipe"] = _read(path)
    for text in ("", " ", "\n\n", "a\0b"):
        said[f"the text {text!r}"] = _read(text)
    assert_kept(KEPT, said)


def _changed(text: str) -> Dict[str, str]:
    """What happens to texts: line ends, huge and odd numbers, columns, rows and rules that are missing."""
    lines = text.split("\n")
    third, rows = len(lines) // 3, [number for number, line in enumerate(lines) if "[" in line or "(" in line]
    some = rows[len(rows) // 2] if rows else 0
    digits = {
        "many": "9" * 30,
        "none": "",
        "nought": "0",
        "less": "-7",
        "part": "1.5",
        "others": "٣",
        "M": "3M",
    }

    def line(number: int, new: str) -> str:
        return "\n".join([*lines[:number], new, *lines[number + 1 :]])

    def of_row(change: str) -> str:
        return "".join(change if char.isdigit() else char for char in lines[some])

    return {
        **{f"digits {name}": line(some, of_row(change)) for name, change in digits.items()},
        "Windows": text.replace("\n", "\r\n"), "old Mac": text.replace("\n", "\r"),
        "no first column": "\n".join(line[12:] for line in lines), "half": line(some, lines[some][:20]),
        "cut at 40": "\n".join(line[:40] for line in lines),
        "no rules": "\n".join(line for line in lines if set(line) - set("=-_ ")),
        "no totals": "\n".join(line for line in lines if not line.startswith(("Total", "Params"))),
        "twice": text + "\n\n" + text, "a row twice": line(some, lines[some] + "\n" + lines[some]),
        "no end": "\n".join(lines[:-third]), "no start": "\n".join(lines[third:]), "no row": line(some, ""),
        "indented": "\n".join("    " + line for line in lines), "tabs": text.replace("  ", "\t"),
        "no commas": text.replace(",", ""), "wide": text.replace(" ", "   "), "loud": text.upper(),
    }  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_changed_text_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    path, said = tmp_path / "summary.txt", {}
    for how, changed in _changed(TEXTS[name]).items():
        path.write_bytes(changed.encode())
        said[f"{name}, {how}"] = _read(path)
    assert_kept(KEPT, said)
