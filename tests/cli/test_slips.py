"""Slips on a command line: one line that says what was meant, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import List

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS

GPUMEM = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main())"


def call(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GPUMEM, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_an_unknown_option_is_one_line_and_no_wall_of_usage(command: str) -> None:
    done = call(command, "--no-such-thing-anywhere")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert "usage:" not in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["estimate", "--btch-size", "8", "x"], "--batch-size"), (["report", "--jsn"], "--json")],
)
def test_what_was_probably_meant_is_named(words: List[str], meant: str) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert f"Did you mean {meant}?" in done.stderr


def test_a_command_to_trace_without_its_dashes_is_told_where_they_go() -> None:
    for words in (["python", "train.py"], ["-o", "x.json", "python", "train.py", "--epochs", "3"]):
        done = call("trace", *words)
        assert (done.returncode, "Write it behind --" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("command", ["estimate", "fit", "why"])
def test_an_option_of_code_that_only_summarize_has_is_looked_for_there(command: str) -> None:
    done = call(command, "train.py:build", "--step-callable", "train.py:step")
    assert done.returncode == 2
    assert "gpumem summarize takes --step-callable" in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["docs"], ["--version"], ["estimate", "--help"]])
def test_a_full_standard_output_is_no_traceback(words: List[str]) -> None:
    with open("/dev/full", "w") as full:
        done = call(*words, stdout=full.fileno())
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
