"""Messages on stderr: whole in a pipe, broken between words on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import wrapped

SENTENCE = " ".join(["word"] * 60)


def _on_terminal(columns: int) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    code = f"from slurm_gpumem.terminal.say import say; say({SENTENCE!r})"
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True)
    os.close(theirs)
    assert done.returncode == 0
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    return shown.replace("\r", "")


def test_a_pipe_gets_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{SENTENCE}\nmore")
    assert capsys.readouterr().err == f"gpumem: {SENTENCE}\n        more\n"


@pytest.mark.parametrize(("columns", "most"), [(60, 60), (200, 110), (0, 110)])
def test_a_terminal_gets_lines_that_fit_and_never_very_long_ones(columns: int, most: int) -> None:
    lines = _on_terminal(columns).splitlines()
    assert max(map(len, lines)) <= most
    assert lines[0].startswith("gpumem: word")
    assert all(line.startswith("        word") for line in lines[1:])
    assert " ".join(line[8:] for line in lines) == SENTENCE


def test_a_word_longer_than_the_line_is_not_cut() -> None:
    assert wrapped("a " + "x" * 30 + " b c", 10) == ["a", "x" * 30, "b c"]
