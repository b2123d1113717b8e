"""Which job starts next: memory is never promised twice, and nobody waits for ever."""

from __future__ import annotations

from typing import List

import pytest

pytest.importorskip("torch", reason="planning weighs models with torch")

from lab.collect.entries import Entry
from lab.collect.sample import Job
from lab.collect.scheduler import PATIENCE, Scheduler


def _job(name: str, mib: float) -> Job:
    entry = Entry(id=name, source="own", family="mlp", build="x", task="table")
    return Job(entry, 8, 1, "adam", "fp32", expected_mib=mib)


def _names(jobs: List[Job]) -> List[str]:
    return [job.entry.id for job in jobs]


def _take_all(scheduler: Scheduler, used_mib: float = 0.0) -> List[str]:
    taken = []
    while (job := scheduler.take(used_mib)) is not None:
        taken.append(job)
    return _names(taken)


def test_jobs_start_in_order_until_their_sum_is_reached() -> None:
    jobs = [_job("a", 40), _job("b", 40), _job("c", 40), _job("d", 15)]
    scheduler = Scheduler.of(jobs, slots=8, shared_mib=100, device_mib=1000)
    assert _take_all(scheduler) == ["a", "b", "d"]
    assert scheduler.expected_mib == 95
    scheduler.ended(jobs[0])
    assert _take_all(scheduler) == ["c"]


def test_no_more_jobs_run_than_there_are_slots() -> None:
    scheduler = Scheduler.of([_job(str(i), 1) for i in range(5)], slots=2, shared_mib=100, device_mib=1000)
    assert _take_all(scheduler) == ["0", "1"]


def test_what_the_driver_counts_as_used_stops_a_job_that_the_guess_would_let_start() -> None:
    scheduler = Scheduler.of([_job("a", 10), _job("b", 10)], slots=8, shared_mib=100, device_mib=200)
    assert _names([job for job in [scheduler.take(0)] if job]) == ["a"]
    assert scheduler.take(195) is None
    assert scheduler.take(185) is not None


def test_the_first_job_is_passed_only_so_often() -> None:
    running, large = _job("running", 60), _job("large", 90)
    small = [_job(f"small{i}", 1) for i in range(PATIENCE + 5)]
    scheduler = Scheduler.of([running, large, *small], slots=1000, shared_mib=100, device_mib=1000)
    passed = []
    assert _names([job for job in [scheduler.take(0)] if job]) == ["running"]
    while (job := scheduler.take(0)) is not None:
        passed.append(job)
        scheduler.ended(job)
    assert _names(passed) == _names(small[:PATIENCE])
    scheduler.ended(running)
    assert _names([job for job in [scheduler.take(0)] if job]) == ["large"]


def test_a_job_larger_than_the_shared_part_waits_for_the_gpu_to_itself() -> None:
    small, large = _job("small", 10), _job("large", 500)
    scheduler = Scheduler.of([large, small], slots=8, shared_mib=100, device_mib=1000)
    assert _take_all(scheduler) == ["small"]
    assert scheduler.take_alone() is None
    scheduler.ended(small)
    assert scheduler.take_alone() is large
    scheduler.pending.append(small)
    assert scheduler.take(0) is None
    scheduler.ended(large)
    assert scheduler.take(0) is small
