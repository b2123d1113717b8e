"""How a traced process ends: with one answer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


class _Ended(BaseException):
    """In the place of waiting for the end."""


class _Report:
    """Remembers what was said."""

    def __init__(self, first: bool = True) -> None:
        self.said: List[Dict[str, Any]] = []
        self._first = first

    def say(self, **message: Any) -> None:
        self.said.append(message)

    def claim(self) -> bool:
        return self._first

    def put_summary(self, text: str) -> None:
        self.said.append({"summary": text})

    def put_inference(self, text: str) -> None:
        self.said.append({"passes": text})


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Any:
    from slurm_gpumem.tracing.script import ending as module

    def wait() -> None:
        raise _Ended

    monkeypatch.setattr(module, "wait_for_the_end", wait)
    monkeypatch.setattr(module, "to_json", str)
    monkeypatch.setattr("sys.gpumem_files_read", SimpleNamespace(write=lambda: None), raising=False)

    def made(report: _Report, *, passes: bool = False, fast_forward: bool = False) -> Any:
        root = SimpleNamespace(kind="Net")
        recorder: Any = SimpleNamespace(
            off=False,
            guess=SimpleNamespace(used=False),
            places=SimpleNamespace(all_roots=lambda: [root]),
        )
        steps: Any = SimpleNamespace(counts={}, fast_forward=fast_forward)
        inference: Any = SimpleNamespace(was_all=lambda: passes)
        skips: Any = SimpleNamespace(completed=2)
        told: Any = report
        return module.Ending(told, recorder, steps, skips, inference, lambda: ("all", {"steps": 3}))  # type: ignore[arg-type,return-value]

    return made


def test_a_training_that_ends_by_itself_is_written_down_once(ending: Any) -> None:
    report = _Report()
    one = ending(report)
    assert one.claim()
    one._steps.counts[0] = 3
    with pytest.raises(_Ended):
        one._at_exit()
    assert one.came_to_its_end
    assert report.said[-2:] == [{"summary": "all"}, {"done": {"steps": 3}}]
    before = len(report.said)
    one.finish()
    assert len(report.said) == before


def test_a_process_beside_the_traced_one_notes_nothing(ending: Any) -> None:
    one = ending(_Report(first=False))
    assert not one.claim()
    assert one._recorder.off


def test_a_process_that_called_its_models_only_says_so_unless_it_failed(ending: Any) -> None:
    report = _Report()
    ending(report, passes=True)._at_exit()
    assert report.said == [{"passes": "all"}, {"inference": {"steps": 3}}]
    report = _Report()
    one = ending(report, passes=True)
    one.failed_by(RuntimeError("no file"))
    one._at_exit()
    assert report.said == [{"ended": True, "models": ["Net"], "guessed": False}]


def test_an_error_past_what_was_worth_running_ends_the_trace_with_what_was_seen(ending: Any) -> None:
    report = _Report()
    one = ending(report, fast_forward=True)
    one.claim()
    one._steps.counts[0] = 3
    with pytest.raises(_Ended):
        one.failed_by(RuntimeError("no values"))
    assert "no values" in report.said[-1]["done"]["onward_failure"]
    assert "no values" in one.failure


def test_an_error_while_another_thread_writes_down_what_was_seen_is_not_the_scripts(ending: Any) -> None:
    one = ending(_Report())

    def finish() -> None:
        with pytest.raises(_Ended):
            one.finish()

    writer = threading.Thread(target=finish)
    writer.start()
    writer.join()
    one._finisher = -1  # as long as it waits, no other thread has its number
    with pytest.raises(_Ended):
        one.failed_by(RuntimeError("no values"))
    assert not one.failure
