"""Folders of reports that are none: links, pipes, huge files, other words, other users."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from slurm_gpumem.data import package_folder
from slurm_gpumem.formats.comment import Used, format_used, parse_used
from slurm_gpumem.recovery.process_reports import VERSION, take_reports
from tests.support.needs import needs_root

GOOD: Dict[str, Any] = {
    "version": VERSION, "began": 10.0, "ended": 20.0, "torch": "2.6.0+cu124", "loading": "LAZY",
    "devices": [[900 << 20, 900 << 20]],
}  # fmt: skip
USED = Used(0, 900, "2.6.0+cu124", "lazy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "gpumem-reports.7.0"
    made.mkdir(mode=0o700)
    return made


def put(folder: Path, name: str = "1.json", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**GOOD, **changes}))
    return path


def test_a_good_report_is_taken_and_its_folder_removed(folder: Path) -> None:
    put(folder)
    assert take_reports(str(folder), 0) == USED
    assert not folder.exists()
    assert parse_used(f"mine {format_used(USED)}") == USED


def test_the_hook_and_its_reader_agree_on_the_version() -> None:
    assert f"VERSION = {VERSION}\n" in Path(package_folder("injected"), "gpumem_report.py").read_text()


def _huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


TRAPS: Dict[str, Callable[[Path], object]] = {
    "huge": _huge,
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "empty": lambda path: path.write_bytes(b""),
    "nested": lambda path: path.write_text("[" * 4000),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "dangling": lambda path: path.symlink_to("/nonexistent"),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "unfinished": lambda path: path.write_text(json.dumps({"version": VERSION})),
    "too large a number": lambda path: path.write_text(json.dumps({**GOOD, "devices": [[1 << 60, 1 << 60]]})),
    "NaN": lambda path: path.write_text(json.dumps({**GOOD, "began": float("nan")})),
    "no number": lambda path: path.write_text(json.dumps({**GOOD, "devices": [["9", True]]})),
    "negative": lambda path: path.write_text(json.dumps({**GOOD, "devices": [[-5, -5]]})),
    "many devices": lambda path: path.write_text(json.dumps({**GOOD, "devices": [[1 << 30] * 2] * 3})),
    "another version": lambda path: path.write_text(json.dumps({**GOOD, "version": 2})),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_a_file_that_is_no_report_silences_the_run_and_holds_nobody(
    folder: Path, trap: Callable[[Path], object]
) -> None:
    put(folder)
    trap(folder / "2.json")
    assert take_reports(str(folder), 0) is None
    assert not folder.exists()
    assert Path("/etc/hostname").exists()


def test_words_become_short_plain_words_in_the_comment(folder: Path) -> None:
    put(folder, torch="2.6 \x1b[31m,res=1;$(touch x)\n" + "y" * 500, loading="LAZY,run=9")
    used = take_reports(str(folder), 0)
    assert used is not None
    word = format_used(used)
    assert len(word) < 150
    assert word.isprintable()
    assert " " not in word
    parsed = parse_used(word)
    assert parsed is not None
    assert (parsed.run, parsed.reserved_mib) == (0, 900)


def test_more_processes_than_any_job_has_say_nothing(folder: Path) -> None:
    for number in range(500):
        put(folder, f"{number}.json", began=number, ended=number)
    assert take_reports(str(folder), 0) is None
    assert not folder.exists()


def test_a_link_in_place_of_the_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    put(folder)
    link = tmp_path / "gpumem-reports.8.0"
    link.symlink_to(folder)
    assert take_reports(str(link), 0) is None
    assert (folder / "1.json").exists()


@needs_root
def test_somebody_elses_folder_is_left_alone(folder: Path) -> None:
    put(folder)
    os.chown(folder, 65534, 65534)
    assert take_reports(str(folder), 0) is None
    assert (folder / "1.json").exists()


@needs_root
def test_somebody_elses_file_in_the_folder_says_nothing(folder: Path) -> None:
    os.chown(put(folder), 65534, 65534)
    assert take_reports(str(folder), 0) is None


@pytest.mark.parametrize("fields", ["", "run=0", "run=0,res=x", "run=-1,res=5", "run=0,res=99999999999"])
def test_a_word_that_makes_no_sense_is_none(fields: str) -> None:
    assert parse_used(f"mine gpumem-used/1:{fields}") is None
    assert parse_used(fields) is None
