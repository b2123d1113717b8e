"""When enough of a training was seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch

CROWDED = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from slurm_gpumem.tracing.follow.enough_steps import _waited_for_a_cpu
neighbours = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        while os.getppid() != 1:  # ends by itself if nobody ends it
            pass
        os._exit(0)
    neighbours.append(pid)
try:
    before, started = _waited_for_a_cpu(), time.monotonic()
    while time.monotonic() - started < 2:
        pass
    print(_waited_for_a_cpu() - before)
finally:
    for pid in neighbours:
        os.kill(pid, 9)
"""


def test_time_in_which_others_had_the_cpu_is_not_counted_as_time_onward(tmp_path: Path) -> None:
    script = tmp_path / "crowded.py"
    script.write_text(CROWDED)
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=300,
    )
    # Three processes on one CPU: each waits for more than half of the two seconds.
    assert float(out.stdout) > 0.5


@pytest.mark.parametrize("grows", [True, False])
def test_the_time_limit_says_whether_memory_was_still_growing(
    monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    from slurm_gpumem.tracing.follow import enough_steps

    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    recorder: Any = SimpleNamespace(peak_bytes=0)
    seen = enough_steps.Steps(recorder, 10.0, 6.0)
    seen.counts[0] = 3
    for second in range(12):
        now[0] = float(second)
        recorder.peak_bytes = 100 * second if grows or second < 5 else recorder.peak_bytes
        if seen.time_is_over():
            break
    assert now == [11.0]
    assert seen.cut_off
    assert seen.still_growing == grows


def test_a_process_that_writes_down_what_it_has_seen_gets_time_for_it() -> None:
    from slurm_gpumem.tracing.script.messages import State
    from slurm_gpumem.tracing.script.run import Limits, _allowed, _take

    state, limits = State(), Limits(seconds=100.0)
    assert _allowed(limits, state) == 100.0
    _take({"training": True}, state)
    assert 104.0 > _allowed(limits, state) > 102.0, "time to see that it is late"
    _take({"finishing": True}, state)
    assert _allowed(limits, state) > 110.0


def test_a_script_that_calls_nothing_after_its_time_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_gpumem.tracing.follow import enough_steps

    now = [9.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    recorder: Any = SimpleNamespace(peak_bytes=0, calls=0)
    seen = enough_steps.Steps(recorder, 10.0, 6.0)
    assert not seen.is_late()
    now[0] = 20.0
    assert not seen.is_late(), "nothing has been trained"
    seen.counts[0] = 3
    recorder.calls = 1
    assert not seen.is_late(), "it calls something, which may stop it"
    now[0] = 25.0
    assert seen.is_late()
    assert seen.cut_off


def test_looking_at_a_scripts_variables_keeps_none_of_them() -> None:
    import sys
    import weakref

    from slurm_gpumem.tracing.follow.loops import known_in

    class Batch:
        pass

    def train() -> bool:
        batch, epoch = Batch(), 7
        there = weakref.ref(batch)
        known = known_in(sys._getframe())
        assert known["epoch"] == epoch
        del known, batch
        return there() is None

    assert train()
