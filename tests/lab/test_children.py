"""Forked children: an answer, a crash, a hang, each known for what it was."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict

from lab.children import Ended, run_each


def _run(limit: float = 120, jobs: int = 2, **works: Callable[[], Dict[str, Any]]) -> Dict[str, Ended]:
    return {ended.tag: ended for ended in run_each(works.items(), jobs, limit)}


def _raise() -> Dict[str, Any]:
    raise RuntimeError("the model is odd")


def _die() -> Dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _hang() -> Dict[str, Any]:
    signal.pause()
    return {}


def test_an_answer_comes_back_however_long_it_is() -> None:
    text = "x" * 300_000
    assert _run(long=lambda: {"text": text}) == {"long": Ended("long", {"text": text})}


def test_a_child_that_fails_or_dies_leaves_the_others_alone_and_tells_why() -> None:
    ended = _run(odd=_raise, fine=lambda: {"fine": 1}, dead=_die)
    assert ended["odd"].answer is None
    assert "RuntimeError: the model is odd" in ended["odd"].error
    assert ended["fine"].answer == {"fine": 1}
    assert ended["dead"].error.startswith(f"died: exit code -{int(signal.SIGKILL)}")


def test_a_child_past_its_time_is_killed() -> None:
    ended = _run(hang=_hang, limit=0.2)["hang"]
    assert ended.answer is None
    assert ended.error.startswith("time limit: killed after")
