"""Colours where somebody looks, and nowhere else."""

from __future__ import annotations

import io

import pytest

from slurm_gpumem.terminal.colour import palette


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_gets_colours_and_a_pipe_none() -> None:
    assert palette("auto", _Terminal()).red("x") == "\x1b[31mx\x1b[0m"
    assert palette("auto", io.StringIO()).red("x") == "x"


def test_who_wants_none_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert palette("auto", _Terminal()).red("x") == "x"
    # What is asked for on the command line counts more.
    assert palette("always", io.StringIO()).on
    assert not palette("never", _Terminal()).on


def test_an_empty_no_color_says_nothing_and_a_dumb_terminal_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert palette("auto", _Terminal()).on
    monkeypatch.setenv("TERM", "dumb")
    assert not palette("auto", _Terminal()).on
