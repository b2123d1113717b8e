"""What a job gets for its next time slot: the rest of its time, a share by what was measured."""

from __future__ import annotations

from typing import Dict, List, Optional

import pytest

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.job_record import JobRecord, Measurement
from slurm_gpumem.recovery.job_comment import Refusal, parse_comment
from slurm_gpumem.recovery.ladder import record_of_next, why_not
from slurm_gpumem.recovery.slots import next_slot
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.state.queue import Job

RECORD = "gpumem/1:est=11000,req=12288,by=corrected,shards=12,slot=600"
JOB = Job(
    name="7", state="COMPLETING", reason="NonZeroExitCode", restarts=0, may_requeue=True, batch=True,
    status="75:0", het=False, priority=100, uid=1, partitions=("gpu",), request="gres/shard:a100:12",
    comment="", number=7, limit_min=60,
)  # fmt: skip
CONFIG, SITE = RecoveryConfig(), Site((24, 11, 5), True, None)


def measured(*peaks: float, samples: int = 100) -> List[JobRecord]:
    return [
        JobRecord(7, run, 1, "n1", 1000.0, measured=Measurement(12, True, 12288, peak, samples=samples))
        for run, peak in enumerate(peaks)
    ]


def after(
    *records: JobRecord,
    words: str = "",
    earlier: Optional[Dict[int, Decision]] = None,
    used: str = ",used=590",
    config: RecoveryConfig = CONFIG,
    **changes: object,
) -> Decision:
    job = JOB._replace(**changes)  # type: ignore[arg-type]
    end = f"gpumem-end/1:run={job.restarts},saw=slot,save=7{used}"
    comment = parse_comment(f"mine {RECORD}{words} {end}")
    assert why_not(job, comment, config, SITE) is None
    found = next_slot(job, comment, config, earlier or {}, tuple(records))
    if isinstance(found, Refusal):
        return Decision(job.restarts, 0.0, False, found.reason)
    return found


def test_the_time_that_slots_take_adds_up_to_the_limit_of_the_job() -> None:
    limit, decided = 60, {}
    for run in range(6):
        found = after(earlier=decided, restarts=run, limit_min=limit)
        assert found.requeued
        decided[run], limit = found, found.limit_min or 0
    assert decided[5].used_s == 6 * 590
    # 59 of 60 minutes are used; the last run has the one that is left, and then there is none.
    assert limit == 1
    assert "used up" in after(earlier=decided, restarts=6, limit_min=limit).reason
    assert after(limit_min=None).limit_min is None


def test_what_was_measured_replaces_what_was_estimated() -> None:
    found = after(*measured(5000.0))
    assert (found.request, found.shards, found.was) == ("shard:a100:6", 6, 12)
    again = after(*measured(5000.0, 5000.0), words=",why=slot,was=12,slots=1", request="gres/shard:a100:6")
    assert again.request == ""


@pytest.mark.parametrize(
    ("words", "request_", "peaks", "samples"),
    [
        ("", "gres/shard:12", [12000.0], 100),
        ("", "gres/shard:12", [5000.0], 20),
        ("", "gres/shard:12", [], 100),
        ("", "gres/shard:20", [5000.0], 100),
        ("", "gres/gpu:1", [5000.0], 100),
        (",by=mem", "gres/shard:12", [5000.0], 100),
        (",retry=1", "gres/shard:12", [5000.0], 100),
    ],
    ids=["needed", "few samples", "no record", "by activity", "whole GPU", "by hand", "by recovery"],
)
def test_a_share_that_was_not_estimated_or_is_needed_stays(
    words: str, request_: str, peaks: List[float], samples: int
) -> None:
    found = after(*measured(*peaks, samples=samples), words=words, request=request_)
    assert (found.requeued, found.request, found.shards) == (True, "", None)


def test_the_record_of_the_next_run_counts_slots_and_keeps_the_longest_save() -> None:
    comment = parse_comment(f"{RECORD},slots=2,save=9")
    assert comment.record is not None
    record = record_of_next(comment.record, after(words=",save=9", restarts=2))
    assert (record.slots, record.save, record.why, record.run, record.shards) == (3, 9, "slot", 3, 12)


def test_a_run_that_ends_long_before_its_slot_does_not_circle_in_the_queue() -> None:
    assert "long before" in after(used=",used=3").reason


def test_how_long_a_run_took_is_not_only_its_owners_word() -> None:
    record = JobRecord(7, 0, 1, "n1", 1000.0, end=3400.0)
    assert [after(record, used=used).limit_min for used in (",used=590", "")] == [20, 20]
    assert after(used="").limit_min == 50  # its slot, where nobody says


def test_slots_below_the_sites_minimum_are_refused_and_no_run_is_free() -> None:
    """Whatever a comment says: its owner can write it, with plain sbatch, too."""
    assert "shorter than 600 s" in after(words=",slot=10").reason
    short = CONFIG._replace(least_slot_s=10)
    assert after(words=",slot=10", used=",used=10", config=short).limit_min == 59


def test_a_job_that_asked_for_no_slots_gets_none() -> None:
    comment = parse_comment("gpumem/1:req=12288,shards=12 gpumem-end/1:run=0,saw=slot")
    assert next_slot(JOB, comment, CONFIG, {}, []) == Refusal("its owner asked for no slots")
