"""Logs that are none: links, pipes, holes, devices."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_gpumem.recovery.log_verdict import TAIL_BYTES, TooSlowError, read_tail, time_limit


def test_only_the_last_64_kib_of_a_huge_file_with_holes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    text = read_tail(str(path))
    assert text == "the end\n"


def test_a_line_that_is_cut_in_two_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * TAIL_BYTES + "\nlast\n")
    assert read_tail(str(path)) == "last\n"


def test_a_pipe_that_nobody_writes_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_tail(str(tmp_path / "pipe")) == ""


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/proc/self/mem", "/", "/nonexistent", "a\0b"])
def test_what_is_no_regular_file_is_not_read(path: str) -> None:
    assert read_tail(path) == ""


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("CUDA out of memory")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    assert read_tail(str(tmp_path / "log")) == ""


def test_bytes_that_are_no_text_are_borne(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(range(256)) * 300)
    assert "\0" not in read_tail(str(tmp_path / "log"))


def test_our_own_stderr_is_read_through_the_open_file_even_when_it_was_renamed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from slurm_gpumem.recovery.log_verdict import read_own_stderr; "
        f"os.rename({str(tmp_path / 'log')!r}, {str(tmp_path / 'other')!r}); "
        "sys.stdout.write(read_own_stderr())"
    )
    with open(tmp_path / "log", "w") as file:
        file.write("what the job said\n")
        file.flush()
        done = subprocess.run(
            [sys.executable, "-c", code], stderr=file, stdout=subprocess.PIPE, text=True, check=True
        )
    assert done.stdout == "what the job said\n"


def test_what_takes_too_long_is_given_up() -> None:
    with pytest.raises(TooSlowError), time_limit(0.1):
        time.sleep(5)
