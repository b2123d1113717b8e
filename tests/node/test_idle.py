"""What counts as idle, how long a job may be, and what is done about it, without a cluster.

`python -m tests.node.test_idle` prints how long the measured runs of the rehearsals rested.
"""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

from slurm_gpumem.config.kinds import DURATION
from slurm_gpumem.config.node import NodeConfig, node_config_from
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sampler.idle import time_allowed_s
from slurm_gpumem.node.sampler.usage import GpuUsage, JobUsage, Stretch
from slurm_gpumem.slurm.mail import JobWords, address_of
from slurm_gpumem.slurm.state.queue import Job
from tests.node.desk import GPUS, Desk
from tests.support.squeue import squeue_line
from tests.support.waiting import until

REHEARSALS = Path(__file__).parents[2] / "lab" / "docs"
SMALL_JOB, ONE_KERNEL_A_SECOND = 7.07e-5, 4.7e-8
"""SM activity by GPM on an H200: 256x256 products 20 times a second; one 16x16 product a second. NVML's
utilization was 0 for both, and a process that holds memory and sleeps had exactly 0 by GPM."""
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    ("sample", "sharers", "held", "strangers", "rested"),
    [
        (GpuSample(sm_active=0.0), 1, True, False, True),
        (GpuSample(sm_active=0.0), 3, True, True, True),
        (GpuSample(sm_active=ONE_KERNEL_A_SECOND), 1, True, False, False),
        (GpuSample(sm_active=SMALL_JOB, utilization=0.0), 1, True, False, False),
        # Of several jobs on a GPU that computes nobody can say which one did.
        (GpuSample(sm_active=0.9), 2, True, False, False),
        # Without SM counters a small job looks idle: NVML's utilization says nothing.
        (GpuSample(utilization=0.0), 1, True, False, False),
        (GpuSample(), 0, True, False, False),
        # No process on the GPU: known even without counters ...
        (GpuSample(), 0, False, False, True),
        (GpuSample(sm_active=0.9), 2, False, False, True),
        # ... unless there is one whose job is not known, or something too short to be seen computed.
        (GpuSample(sm_active=0.9), 2, False, True, False),
        (GpuSample(), 0, False, True, False),
        (GpuSample(sm_active=SMALL_JOB), 0, False, False, False),
    ],
)
def test_only_what_is_certain_counts_as_rest(
    sample: GpuSample, sharers: int, held: bool, strangers: bool, rested: bool
) -> None:
    assert Stretch(sample, 5.0, None, sharers, 2, strangers=strangers).rested(held=held) is rested
    assert not Stretch(sample, 300.0, None, sharers, 2, strangers=strangers).rested(held=held)


def test_a_job_that_loads_does_not_rest_and_one_gpu_at_work_is_enough() -> None:
    usage, still = JobUsage(0), Stretch(GpuSample(sm_active=0.0), 5.0, None, 1, 1)
    loads, sleeps = (usage.gpus.setdefault(name, GpuUsage()) for name in ("GPU-1", "GPU-2"))
    for second in range(100):
        loads.add_memory(float(second), 1, 5.0)
        sleeps.add_memory(70.0, 1, 5.0)
        for gpu in (loads, sleeps):
            gpu.add_activity(still, 1, held=True)
    assert loads.rest_s == 5.0
    assert sleeps.rest_s == 500.0
    assert usage.rest_s(("GPU-1", "GPU-2")) == 5.0
    assert usage.rest_s(("GPU-2", "GPU-3")) == 0.0  # of the third nothing is known yet
    usage.begin_rest()
    assert sleeps.rest_s == 0.0


def job(**values: Any) -> Job:
    known = Job("1", "RUNNING", "None", 0, True, True, "0:0", False, 1, os.geteuid(), ("gpu",), "", "")
    return known._replace(**{"number": 1, "user": ME, "account": "phys", "qos": "normal", **values})


EXCEPT = {"partition": ["debug"], "user": ["anna"], "qos": ["teach"]}


@pytest.mark.parametrize(
    ("values", "name", "rest_s", "allowed"),
    [
        ({}, "train", 7000.0, "2h"),
        ({}, "train", 5000.0, "5h"),
        ({"batch": False}, "bash", 7000.0, "8h"),
        ({}, "interactive-1", 7000.0, "8h"),
        ({}, "sys/dashboard/sys/jupyter", 5000.0, "8h"),
        ({"partitions": ("debug",)}, "", 7000.0, None),
        ({"user": "anna"}, "", 7000.0, None),
        ({"qos": "teach"}, "", 7000.0, None),
        ({"het": True}, "", 7000.0, None),
        ({"nodes": 2}, "", 7000.0, None),
    ],
)
def test_how_long_a_job_may_rest(
    values: Dict[str, Any], name: str, rest_s: float, allowed: Optional[str]
) -> None:
    config = node_config_from({"node": {"idle_except": EXCEPT}}, "a.toml")
    assert config.notes == ()
    found = time_allowed_s(config, job(**values), JobWords(name), rest_s, age_s=7030.0)
    assert found == (None if allowed is None else DURATION.checked(allowed))


@pytest.mark.parametrize("wrong", [{"begin": "2h"}, {"start": 7200}, ["2h"], {"start": "soon"}])
def test_a_wrong_time_is_told_and_the_default_is_used(wrong: object) -> None:
    config = node_config_from({"node": {"idle_after": wrong}}, "a.toml")
    assert "idle_after must be a table of times with the keys start, later, interactive" in config.notes[0]
    assert config.idle_after == NodeConfig().idle_after


@pytest.mark.parametrize(
    "wanted",
    ["-Ssendmail=/tmp/x", "|/bin/sh", "/etc/passwd", "a b", "a@b;id", "$(id)", "a,-b", "a\n-b", "anna@-x"],
)
def test_what_is_no_mail_address_reaches_no_mail_program(wanted: str) -> None:
    assert address_of(wanted, os.geteuid(), "") is None


def test_an_address_is_made_as_slurm_makes_it() -> None:
    assert address_of("", os.geteuid(), "example.org") == f"{ME}@example.org"
    assert address_of("anna+x@b.org", os.geteuid(), "example.org") == "anna+x@b.org"
    assert address_of("", 4_000_111, "") is None


class Resting:
    """A job that has rested for as long as the test says, and what Slurm answers about it."""

    def __init__(self, make_desk: Callable[..., Desk], known: Optional[Job], **config: object) -> None:
        sampled = f"echo 1 {os.getuid()} RUNNING 0 0 1 gres:shard:4 1"
        full = "exit 1" if known is None else f"cat <<'END'\n{squeue_line(known)}\nEND"
        squeue = f'case "$*" in *JobArrayID:32*)\n{full}\n;; *) {sampled};; esac'
        self.desk = make_desk(squeue=squeue, **config)
        self.desk.job(1)
        self.desk.sampler.tick()
        self.usage = self.desk.sampler.roster.usage[1]

    def rest(self, seconds: float, *, then: Callable[[], object]) -> None:
        """Look until that came true."""

        def looked() -> object:
            self.usage.gpus[GPUS[0].uuid].rest_s = seconds
            self.desk.sampler._idle_jobs.look()
            return then()

        until(looked)

    def log(self) -> str:
        path = self.desk.folder.root / "log"
        return path.read_text() if path.exists() else ""

    def kinds(self) -> List[str]:
        return [event.kind for event in self.usage.events]

    def asked_and_done(self) -> bool:
        """Whether Slurm's answer has been dealt with."""
        cases = self.desk.sampler._idle_jobs._cases
        return 1 in cases and not cases[1].asking and cases[1].due_s > 7200


def test_by_default_an_idle_job_is_noted_and_nothing_is_done(make_desk: Callable[..., Desk]) -> None:
    resting = Resting(make_desk, job())
    resting.rest(7199.0, then=lambda: True)
    assert not resting.desk.sampler._idle_jobs._cases
    resting.rest(7201.0, then=lambda: resting.kinds() == ["idle"])
    assert "job 1: its GPU was idle for 2 h (log)" in resting.log()
    assert resting.desk.said() == ""
    resting.rest(5.0, then=lambda: "job 1 uses its GPU again" in resting.log())


@pytest.mark.parametrize("known", [None, job(state="SUSPENDED"), job(restarts=1), job(qos="teach")])
def test_without_slurms_word_or_outside_of_the_rule_nobody_is_cancelled(
    make_desk: Callable[..., Desk], known: Optional[Job]
) -> None:
    resting = Resting(make_desk, known, on_idle="cancel", idle_except={**EXCEPT, "user": []})
    resting.rest(40_000.0, then=resting.asked_and_done)
    assert resting.kinds() == []
    assert resting.desk.said() == ""


def test_a_job_that_works_again_after_the_warning_is_not_cancelled(make_desk: Callable[..., Desk]) -> None:
    resting = Resting(make_desk, job(), on_idle="cancel")
    folder = resting.desk.config.spool / ".idle"
    folder.mkdir(parents=True)
    (folder / str(os.getuid())).write_text("7.0.1\n")
    resting.rest(3700.0, then=lambda: resting.kinds() == ["idle"])
    until(lambda: "is cancelled in 58 min unless it does" in resting.desk.said())
    resting.rest(5.0, then=lambda: "uses its GPU again" in resting.log())
    resting.rest(3500.0, then=lambda: True)
    assert "cancel 1" not in resting.desk.said()
    resting.rest(9000.0, then=lambda: "is cancelled in 30 min unless it does" in resting.desk.said())
    # However late it was seen, it is warned first, and a quarter of its time before.
    resting.rest(10_700.0, then=lambda: True)
    assert "cancel 1" not in resting.desk.said()
    resting.rest(10_900.0, then=lambda: resting.kinds() == ["idle", "idle-ended"])
    until(lambda: "cancel 1" in resting.desk.said())


def _looks(path: Path) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    jobs = [row for row in rows if {"job", "began", "done"} <= row.keys()]
    return [row for row in rows if {"t", "sm"} <= row.keys()], jobs


def longest_rests() -> Iterator[Tuple[str, float, float]]:
    """Of every measured run of the rehearsals on an H200 that ended: its name, its time, its longest rest."""
    for path in sorted(REHEARSALS.glob("rehearsal*/*.jsonl")):
        looks, jobs = _looks(path)
        for one in jobs:
            gpu, longest, before = GpuUsage(), 0.0, one["began"]
            for look in (look for look in looks if one["began"] <= look["t"] <= one["done"]):
                beside = sum(other["began"] <= look["t"] <= other["done"] for other in jobs)
                sample = GpuSample(sm_active=look["sm"])
                stretch = Stretch(sample, look["t"] - before, None, beside, beside)
                gpu.add_activity(stretch, 1, held=True, now=look["t"])
                before, longest = look["t"], max(longest, gpu.rest_s)
            yield f"{path.parent.name}/{path.stem} {one['job']}", one["done"] - one["began"], longest


def test_no_measured_run_rests_for_as_long_as_the_shortest_time_that_is_allowed() -> None:
    found = list(longest_rests())
    assert len(found) >= 100
    # They load for seconds: with a rest of none of them the looks would not have been understood.
    assert 4 < max(rest for _, _, rest in found) < min(NodeConfig().idle_after.values())


if __name__ == "__main__":
    runs = list(longest_rests())
    rests = sorted(rest for _, _, rest in runs)
    print(f"{len(runs)} runs of {min(r[1] for r in runs):.0f} to {max(r[1] for r in runs):.0f} s")
    print(f"longest rest of each: median {rests[len(rests) // 2]:.1f} s, at most {rests[-1]:.1f} s")
    for least_s in (10, 20, 30, 60, *sorted(NodeConfig().idle_after.values())):
        print(f"allowed {least_s:>6} s: {sum(rest >= least_s for rest in rests)} found idle")
