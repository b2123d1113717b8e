from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Iterator

import pytest

from slurm_gpumem.node.hooks.hook_server import Mailbox


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bell"


@pytest.fixture
def box(path: Path) -> Iterator[Mailbox]:
    made = Mailbox(path)
    yield made
    made.close()


def _write(path: Path, text: str) -> None:
    subprocess.run(["/bin/sh", "-c", 'printf %s "$1" >"$0"', str(path), text], check=True, timeout=60)


def test_lines_come_as_soon_as_they_are_written(path: Path, box: Mailbox) -> None:
    _write(path, "7\n8\n")
    assert box.wait(None) == [b"7", b"8"]


def test_without_news_it_waits_until_its_time_and_returns_nothing(box: Mailbox) -> None:
    until = time.monotonic() + 0.02
    assert box.wait(until) == []
    assert time.monotonic() >= until
    assert box.wait(time.monotonic() - 1) == []


def test_a_line_that_comes_in_two_parts_is_one_line(path: Path, box: Mailbox) -> None:
    _write(path, "7\n12")
    assert box.wait(None) == [b"7"]
    _write(path, "34\n")
    assert box.wait(None) == [b"1234"]


def test_a_line_without_an_end_takes_no_memory(path: Path, box: Mailbox) -> None:
    for _ in range(4):
        _write(path, "x" * 60_000)
        assert box.wait(None) == []
    _write(path, "\n7\n")
    line, after = box.wait(None)
    assert len(line) <= 65536
    assert after == b"7"


def test_who_writes_never_waits_for_a_reader_that_has_other_things_to_do(path: Path, box: Mailbox) -> None:
    for number in range(50):
        _write(path, f"{number}\n")
    assert len(box.wait(None)) == 50


def test_the_mode_says_who_may_write_whatever_the_umask_is(path: Path) -> None:
    before = os.umask(0o077)
    try:
        Mailbox(path, 0o622).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o622


def test_the_next_one_takes_over_the_fifo_and_replaces_anything_else(path: Path) -> None:
    Mailbox(path).close()
    Mailbox(path).close()
    path.unlink()
    path.write_text("a plain file")
    Mailbox(path).close()
    assert stat.S_ISFIFO(path.stat().st_mode)
