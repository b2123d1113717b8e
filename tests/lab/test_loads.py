"""The table of limits by load."""

from __future__ import annotations

from lab.score import loads
from lab.simulate.trace_file import read_trace


def test_jobs_at_a_load_bring_as_much_work_as_that_load_means() -> None:
    jobs = read_trace(loads.TRACE)
    for load in loads.LOADS:
        trace = loads.at_load(jobs, load)
        span = max(job.arrival for job in trace)
        assert abs(sum(job.work for job in trace) / (span * loads.FLEET.gpus) - load) < 1e-6
        assert len({job.user for job in trace}) == 3


def test_the_table_has_every_load_and_placement() -> None:
    found = [
        loads.Point(way, placement, load, limit, 0.9, 1.1)
        for way in loads.WAYS
        for placement in loads.PLACEMENTS
        for load in loads.LOADS
        for limit in loads.LIMITS
    ]
    rows = loads.lines(found)
    assert len(rows) == 1 + len(loads.WAYS) * len(loads.PLACEMENTS) * len(loads.LIMITS)
    assert rows[1].count("0.90 (1.10)") == len(loads.LOADS)


def test_others_that_go_around_a_job_are_told_with_the_longest_wait() -> None:
    one = loads.Played(2.0, 1.1, 0.5)
    rows = loads.patience_lines({"whole GPUs": [one] * 5, "1 h": [one._replace(completion=1.0)] * 5})
    assert rows[2].split() == ["1", "h", *["0.50", "(0.5", "h)"] * 5]
