"""The report on jobs that shared a real GPU, against what the same jobs took and did in truth.

data/rehearsal.json holds what was measured on an H200: activity and power of the GPU each second, memory of
each job, when it began, was ready and done, and each kind of job's speed alone. The sampler sees it again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest

from slurm_gpumem.accounting.store import Store, open_store
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import JobRecord
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node import jobs
from slurm_gpumem.node.sampler import sampler
from slurm_gpumem.report.summary import summary_lines
from tests.accounting.job_records import NOON
from tests.node.desk import GPUS, Desk, Played

ROWS = json.loads((Path(__file__).parent / "data" / "rehearsal.json").read_text())
MODES = sorted(ROWS["modes"])
GPU = GPUS[0]
UIDS = (1001, 1002) if os.getuid() == 0 else (os.getuid(), os.getuid())


class Clock:
    """The seconds of the rehearsal."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOON + self.now


class Measured(Played):
    """The GPU's own counters: means and sums since they were read last."""

    def __init__(self, looks: List[Tuple[float, float, float]], clock: Clock) -> None:
        super().__init__()
        self.looks, self.clock, self.read = looks, clock, 0.0

    def between(self, since: float, column: int) -> float:
        """The column × seconds, from then to now."""
        total, before = 0.0, 0.0
        for look in self.looks:
            total += max(0.0, min(look[0], self.clock.now) - max(before, since)) * look[column]
            before = look[0]
        return total

    def sample(self, uuid: str) -> GpuSample:
        since, self.read = self.read, self.clock.now
        seconds = self.clock.now - since
        active = self.between(since, 1) / seconds if seconds else 0.0
        power = next((look[2] for look in self.looks if look[0] >= self.clock.now), self.looks[-1][2])
        return GpuSample(0.0, ROWS["gpu_mib"], sm_active=active, power_w=power)

    def energy_j(self, uuid: str) -> Optional[float]:
        return self.between(0.0, 2)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tuple[Desk, Clock]]:
    clock = Clock()
    monkeypatch.setattr(sampler, "time", clock)
    made = Desk(tmp_path / "node")
    yield made, clock
    for process in made.processes:
        process.kill()
        process.wait()


def claim_of(job: Dict[str, Any], known: str) -> CommentRecord:
    percent = round(100 * ROWS["alone"][job["kind"]]["sm"])
    claim = CommentRecord(estimate_mib=job["estimate_mib"], shards=job["shards"], model=job["kind"])
    return {
        "remembered": claim._replace(sm=percent, sm_by="remembered"),
        "predicted": claim._replace(sm=percent),
        "unknown": claim,
    }[known]


def close(desk: Desk, number: int, job: Dict[str, Any], claim: CommentRecord) -> None:
    """What the epilog does: the record as the live file has it, and the job's file is gone."""
    measured = desk.sampler.roster.usage[number].measured()
    record = JobRecord(
        number, 0, UIDS[job["user"]], "n1", NOON + job["began"], "site", "gpu", f"usr{job['user']}", "mps",
        (GPU.uuid,), claim, measured._replace(shards=job["shards"], limit_mib=job["shards"] * 1024),
        NOON + job["done"], 0, 0, "COMPLETED",
    )  # fmt: skip
    desk.sampler.roster.store.close(record, 1.0)
    jobs.drop(desk.folder, number)


def replay(desk: Desk, clock: Clock, mode: str, known: str = "remembered") -> Store:
    """The records of all jobs, as the sampler measures and the report reads them."""
    rows = ROWS["modes"][mode]
    source = Measured(rows["looks"], clock)
    desk.source = desk.sampler.source = source
    desk.sampler._meter._source = source
    pids = {number: desk.process(number) for number, _ in enumerate(rows["jobs"], 1)}
    present: Dict[int, Dict[str, Any]] = {}
    for clock.now in (look[0] for look in rows["looks"]):
        for number, job in enumerate(rows["jobs"], 1):
            if number in present and clock.now >= job["done"]:
                del present[number]
                close(desk, number, job, claim_of(job, known))
            if number not in present and job["began"] <= clock.now < job["done"]:
                present[number] = job
                desk.job(
                    number, mode="timeslice" if mode == "timeslice" else "mps", claim=claim_of(job, known)
                )
        desk.hold({pids[number]: mib for number, job in present.items() if (mib := held(job, clock.now))})
        desk.sampler.tick()
    spool = desk.config.spool
    return open_store(
        config=AccountingConfig(spool, spool, desk.root / "site", desk.root / "index"), join=False
    )


def held(job: Dict[str, Any], now: float) -> float:
    at = int((now - job["began"] - job["curve_from"]) / job["step_s"])
    return float(job["memory"][min(at, len(job["memory"]) - 1)]) if at >= 0 else 0.0


def truth(mode: str) -> Tuple[float, float]:
    """GPU-seconds in which any job had the GPU, and those of the same jobs one after another."""
    done = ROWS["modes"][mode]["jobs"]
    alone = sum(job["ready"] - job["began"] + job["steps"] / speed(job) for job in done)
    return max(job["done"] for job in done) - min(job["began"] for job in done), alone


def speed(job: Dict[str, Any]) -> float:
    return float(ROWS["alone"][job["kind"]]["steps_per_s"])


@pytest.mark.parametrize("mode", MODES)
def test_the_saving_is_within_5_percent_of_the_truth(mode: str, desk: Any) -> None:
    total = replay(*desk, mode).summary()
    used, alone = truth(mode)
    saved = 1 - used / alone
    assert total.alone_s == pytest.approx(alone, rel=0.05)
    assert total.saved == pytest.approx(saved, rel=0.05)
    assert 1 - used / total.gpu_s > 1.1 * saved, "run time stretched by neighbours is no exclusive time"
    assert f"({round(100 * (total.saved or 0))}% saved)" in "\n".join(summary_lines(total, (), ""))


@pytest.mark.parametrize("mode", MODES)
def test_the_activity_is_what_the_gpu_showed(mode: str, desk: Any) -> None:
    total = replay(*desk, mode).summary()
    looks = ROWS["modes"][mode]["looks"]
    assert total.sm_used_s
    assert total.sm_s / total.sm_used_s == pytest.approx(
        sum(look[1] for look in looks) / len(looks), abs=0.03
    )


@pytest.mark.parametrize("mode", MODES)
def test_no_energy_is_lost(mode: str, desk: Any) -> None:
    node, clock = desk
    total = replay(node, clock, mode).summary()
    assert total.idle_energy_j > 0
    counted = node.source.between(min(job["began"] for job in ROWS["modes"][mode]["jobs"]), 2)
    assert total.energy_j + total.idle_energy_j == pytest.approx(counted, rel=0.04)


def test_a_job_that_was_slowed_down_says_so_about_right(desk: Any) -> None:
    done = sorted(ROWS["modes"]["shared"]["jobs"], key=lambda job: float(job["began"]))
    off = []
    for row, job in zip(sorted(replay(*desk, "shared").select(), key=lambda row: row.start), done):
        alone = job["ready"] - job["began"] + job["steps"] / speed(job)
        off.append(abs((row.slowdown or 0) - (job["done"] - job["began"]) / alone))
    assert max(off) < 0.35
    assert sum(off) / len(off) < 0.15


@pytest.mark.parametrize("known", ["remembered", "predicted", "unknown"])
def test_the_report_says_what_its_exclusive_time_rests_on(known: str, desk: Any) -> None:
    total = replay(*desk, "shared", known).summary()
    text = "\n".join(summary_lines(total, (), ""))
    assert {
        "remembered": "exclusive time of 8 runs while sharing: by their activity, predicted for 0",
        "predicted": "exclusive time of 8 runs while sharing: by their activity, predicted for 7",
        "unknown": "without sharing: mostly not known",
    }[known] in text
    assert ("saved" in text) == (known != "unknown")
