"""Forked children: an answer, a crash, a hang, each known for what it was."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict

import pytest

from lab.children import Children, Ended


def _run(*works: Callable[[], Dict[str, Any]], limit: float = 120) -> Dict[Any, Ended]:
    children, ended = Children(), {}
    for tag, work in enumerate(works):
        children.start(tag, work, limit)
    while len(children):
        ended.update({e.tag: e for e in children.wait(1)})
    return ended


def _raise() -> Dict[str, Any]:
    raise RuntimeError("the model is odd")


def _die() -> Dict[str, Any]:
    os.write(1, b"last words")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _hang() -> Dict[str, Any]:
    signal.pause()
    return {}


def test_an_answer_comes_back_however_long_it_is() -> None:
    text = "x" * 300_000
    ended = _run(lambda: {"text": text})[0]
    assert ended.answer == {"text": text}
    assert ended.error == ""


def test_a_child_that_fails_or_dies_leaves_the_others_alone_and_tells_why() -> None:
    ended = _run(_raise, lambda: {"fine": 1}, _die)
    assert ended[0].answer is None
    assert "RuntimeError: the model is odd" in ended[0].error
    assert ended[1].answer == {"fine": 1}
    assert ended[2].error == f"died of signal {int(signal.SIGKILL)}: last words"


def test_a_child_past_its_time_is_killed() -> None:
    ended = _run(_hang, limit=0.2)[0]
    assert ended.answer is None
    assert ended.error.startswith("time limit: killed after")


def test_children_leave_no_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _run(_raise, lambda: {"fine": 1})
    assert list(tmp_path.iterdir()) == []
