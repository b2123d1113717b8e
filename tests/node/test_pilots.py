"""When enough of an array's first task was measured, and what its owner's process is started with."""

from __future__ import annotations

import os
import subprocess
from typing import IO, List, Optional, Sequence, Tuple

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import JobRecord, Measurement
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.sampler.pilots import Order, Pilots
from slurm_gpumem.node.sampler.usage import GpuUsage, JobUsage

KEY = "s0123456789abcdef"
FIRST = CommentRecord(shards=0, hold=0, fingerprint=KEY, gpu="a100")
SHARES = FIRST._replace(shards=6, estimate_mib=5000)
CONFIG = NodeConfig(pilot_steady_s=300.0, pilot_wait=3600)


class Watched(Pilots):
    """Notes what it would start."""

    def __init__(self, code: int = 0) -> None:
        self.logged: List[str] = []
        super().__init__(CONFIG, self.logged.append)
        self.code = code
        self.peaks: List[str] = []

    def _process(self, order: Order, said: IO[bytes]) -> subprocess.Popen[bytes]:
        self.peaks.append(order.peak)
        process = subprocess.Popen(["sh", "-c", f"exit {self.code}"])
        process.wait()
        return process

    def see(
        self, peak_mib: Optional[float], now: float, claim: CommentRecord = FIRST, ran_s: float = 0
    ) -> None:
        """One look at one job, and another to see how what was started ended."""
        usage = JobUsage(0, gpus={"GPU-1": GpuUsage(peak_mib=peak_mib)})
        job = NodeJob(7, os.geteuid(), "anna", ("GPU-1",), "timeslice", 1000.0 - ran_s, claim=claim)
        object.__setattr__(job, "booted_s", job.booted_s - ran_s)
        self.look({7: job}, {7: usage}, now)
        self.look({7: job}, {7: usage}, now)


@pytest.mark.parametrize(
    ("looks", "claim", "told"),
    [
        ([(0, 5000), (299, 5000)], FIRST, []),
        ([(0, 5000), (300, 5000)], FIRST, ["5000"]),
        ([(0, 5000), (300, 5000), (900, 5040)], FIRST, ["5000"]),
        ([(0, 5000), (300, 5000), (900, 5060), (901, 7000)], FIRST, ["5000", "5060", "7000"]),
        ([(0, 1000), (1000, 5000), (1999, 5000)], FIRST, []),
        ([(0, 1000), (1000, 5000), (2000, 5000)], FIRST, ["5000"]),
        ([(0, 5000), (200, 5040), (300, 5040)], FIRST, ["5040"]),
        ([(0, None), (300, None), (600, 0)], FIRST, []),
        ([(0, 4000), (400, 5040)], SHARES, []),
        ([(0, 4000), (1, 5060), (2, 5060)], SHARES, ["5060"]),
        ([(0, 5000), (400, 5000)], FIRST._replace(hold=None), []),
        ([(0, 5000), (400, 5000)], FIRST._replace(fingerprint=""), []),
    ],
)
def test_a_peak_is_told_once_it_is_steady_and_when_it_grows_after_that(
    looks: Sequence[Tuple[float, Optional[float]]], claim: CommentRecord, told: List[str]
) -> None:
    pilots = Watched()
    for now, peak_mib in looks:
        pilots.see(peak_mib, now, claim)
    assert pilots.peaks == told


def test_who_waited_for_long_enough_is_told_so_once() -> None:
    pilots = Watched()
    for ran_s in (3500, 3601, 3700):
        pilots.see(None, ran_s, ran_s=ran_s)
    assert pilots.peaks == ["-"]


@pytest.mark.parametrize(
    ("state", "peak_mib", "claim", "told"),
    [
        ("COMPLETED", 5000, FIRST, ["5000"]),
        ("TIMEOUT", 5000, FIRST, ["5000"]),
        ("COMPLETED", None, FIRST, ["-"]),
        ("COMPLETED", 5000, SHARES, []),
        ("COMPLETED", 5001, SHARES, ["5001"]),
        ("COMPLETED", None, SHARES, []),
        *(
            (state, 5000, FIRST, [])
            for state in ("FAILED", "CANCELLED", "REQUEUED", "PREEMPTED", "OUT_OF_MEMORY")
        ),
        ("COMPLETED", 5000, CommentRecord(), []),
    ],
)
def test_a_run_that_came_to_its_end_has_shown_what_it_takes(
    state: str, peak_mib: Optional[float], claim: CommentRecord, told: List[str]
) -> None:
    pilots = Watched()
    pilots.ended(_record(state, peak_mib, claim), 0.0)
    assert pilots.busy == bool(told)
    pilots.look({}, {}, 1.0)
    assert pilots.peaks == told


def test_of_several_runs_that_end_at_once_the_largest_counts() -> None:
    pilots = Watched()
    for peak_mib in (4000, 9000, 5000, None):
        pilots.ended(_record("COMPLETED", peak_mib, FIRST), 0.0)
    pilots.look({}, {}, 1.0)
    pilots.look({}, {}, 2.0)
    assert pilots.peaks == ["9000"]
    assert not pilots.busy


def test_who_stops_the_process_in_their_name_keeps_nobody_else_waiting() -> None:
    class Stopped(Watched):
        def _process(self, order: Order, said: IO[bytes]) -> subprocess.Popen[bytes]:
            self.peaks.append(order.peak)
            return subprocess.Popen(["sleep", "600"])

    pilots = Stopped()
    for uid, peak_mib in ((1, 5000), (2, 6000), (1, 7000)):
        claim = FIRST._replace(fingerprint=f"s{peak_mib}")
        pilots.ended(_record("COMPLETED", peak_mib, claim)._replace(uid=uid), 0.0)
    pilots.look({}, {}, 1.0)
    assert pilots.peaks == ["5000", "6000"]
    started = [one.process for one in pilots._started.values()]
    pilots.look({}, {}, 62.0)
    assert [process.wait() for process in started] == [-9, -9]
    pilots.look({}, {}, 63.0)
    assert pilots.peaks == ["5000", "6000", "7000"]
    pilots._started[1].process.kill()
    pilots._started[1].process.wait()
    pilots.close()


def test_what_fails_is_tried_for_an_hour_and_given_up_in_words() -> None:
    pilots, tried = Watched(code=1), []
    pilots.ended(_record("COMPLETED", 5000, FIRST), 0.0)
    for now in range(0, 6000, 5):
        before = len(pilots.peaks)
        pilots.look({}, {}, float(now))
        tried += [now] * (len(pilots.peaks) - before)
    assert len(tried) == 9
    assert tried[:3] == [0, 15, 40]
    assert tried[-1] > 2400
    assert not pilots.busy
    assert pilots.logged == [f"user {os.geteuid()}: tasks that wait for a measurement were not changed"]


@pytest.mark.parametrize("uid", [4_000_000_000, os.geteuid()])
def test_a_process_that_cannot_start_is_a_line_in_the_log(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: List[str] = []
    monkeypatch.setattr("slurm_gpumem.node.sampler.pilots.sys.executable", "/nowhere/python3")
    pilots = Pilots(CONFIG, logged.append)
    pilots.ended(_record("COMPLETED", 5000, FIRST)._replace(uid=uid), 0.0)
    pilots.look({}, {}, 1.0)
    assert len(logged) == 1
    assert logged[0].startswith(f"user {uid}: ")
    assert pilots.busy


def _record(state: str, peak_mib: Optional[float], claim: CommentRecord = FIRST) -> JobRecord:
    measured = Measurement(peak_mib=peak_mib)
    return JobRecord(
        7, 0, os.geteuid(), "n1", 1000.0, claim=claim, measured=measured, end=2000.0, state=state
    )
