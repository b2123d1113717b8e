"""Files that are no summary: the message names what they are and how to make one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.reader import parse, read_summary
from tests.summaries.saved_summaries import Saved, select

CASES = {
    "Python code": (b"import torch\nprint(1)\n", "line 1 looks like Python code, not a model summary"),
    "Python code after blanks": (b"\n\nclass Net(nn.Module):\n    pass\n", "line 3 looks like Python code"),
    "JSON": (b'{"layers": []}', "line 1 looks like JSON"),
    "a notebook": (b'{\n "cells": [],\n "nbformat": 4}', "line 1 looks like JSON"),
    "a batch script": (b"#!/bin/bash\n#SBATCH -n1\nsrun python train.py\n", "looks like a shell script"),
    "a state_dict": (
        b"OrderedDict([('conv1.weight', tensor([[1., 2.]]))])",
        "looks like a printed state_dict",
    ),
    "a traceback": (b'Traceback (most recent call last):\n  File "a.py"\n', "looks like an error traceback"),
    "a traceback further down": (
        b'loading\nTraceback (most recent call last):\n  File "a.py"\nRuntimeError: CUDA\n',
        "line 2 is an error traceback: the summary was not printed",
    ),
    "prose": (b"My model has three layers.\n", "not a model summary that we know"),
    "a header alone": (
        b"Layer (type)   Output Shape   Param #\n=========\n",
        "not a model summary that we know",
    ),
    "a torch checkpoint": (b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl", "is a checkpoint"),
    "a safetensors file": (b'\x58\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32"}}', "is a checkpoint"),
    "a program": (b"\x7fELF\x00\x01", "is a binary file"),
}


@pytest.mark.parametrize(("content", "message"), CASES.values(), ids=CASES.keys())
def test_a_file_that_is_no_summary_is_named_for_what_it_is(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "summary.txt"
    path.write_bytes(content)
    with pytest.raises(SummaryError) as caught:
        read_summary(path)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{path}: ")
    assert message in first
    assert second.startswith("Make one with: ")


def test_the_command_refuses_with_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    command = [sys.executable, "-m", "slurm_gpumem.cli.gpumem", "estimate", str(path), "--batch-size", "8"]
    code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main(sys.argv[1:]))"
    result = subprocess.run([command[0], "-c", code, *command[3:]], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("gpumem: train.py: which function or class builds the model?\n")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("saved", select(tool="keras"), ids=lambda saved: saved.stem)
def test_a_keras_summary_is_named_and_refused(saved: Saved) -> None:
    with pytest.raises(SummaryError, match="a Keras summary: estimates are for PyTorch"):
        parse(saved.text, origin="x")
