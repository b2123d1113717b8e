from __future__ import annotations

from typing import List

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.largest import Estimating, alternatives, largest_that_fits
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES


def _linear(fixed: int, per_sample: int) -> Estimating:
    """An estimator that anyone can work out: fixed + per_sample x batch, less under AMP or checkpointing."""

    def estimate(job: TrainingJob) -> Estimate:
        width = job.activation_bytes / 4 * (0.25 if job.checkpointing else 1)
        mib = round(fixed + per_sample * job.batch_size * width)
        parts = dict.fromkeys(PART_NAMES, 0)
        parts["activations"] = mib
        return Estimate(mib, mib, mib, parts, "linear", "h200", job)

    return estimate


@given(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 4000), st.integers(0, 100_000))
def test_the_largest_batch_fits_and_one_more_does_not(fixed: int, per: int, asked: int, limit: int) -> None:
    again = _linear(fixed, per)
    found = largest_that_fits(TrainingJob(asked), again, limit)
    expected = (limit - fixed) // per
    assert found == (expected if expected >= 1 else None)


def test_alternatives_are_estimates_of_the_neighbouring_jobs() -> None:
    again = _linear(1000, 100)
    job = TrainingJob(128)
    found = alternatives(again(job), find_gpu("h200"), again)
    assert found.half_batch is not None
    assert found.half_batch.peak_mib == 1000 + 6400
    assert found.amp is not None
    assert (found.amp.job.precision, found.amp.peak_mib) == ("amp-bf16", 1000 + 6400)
    assert found.checkpointing is not None
    assert found.checkpointing.peak_mib == 1000 + 3200
    # 13,800 MiB are 14 shards; four fifths of that are 11 = 11,264 MiB.
    assert (found.fewer_shards, found.batch_for_fewer) == (11, 102)


def test_amp_is_fp16_where_the_gpu_has_no_bf16_and_absent_where_it_is_on_already() -> None:
    again = _linear(10, 10)
    v100 = alternatives(again(TrainingJob(8)), find_gpu("v100"), again)
    assert v100.amp is not None
    assert v100.amp.job.precision == "amp-fp16"
    assert alternatives(again(TrainingJob(8, precision="amp-bf16")), find_gpu("h200"), again).amp is None


def test_one_sample_and_one_shard_leave_nothing_to_offer() -> None:
    again = _linear(10, 10)
    found = alternatives(again(TrainingJob(1)), find_gpu("h200"), again)
    assert (found.half_batch, found.fewer_shards, found.batch_for_fewer) == (None, None, None)


def test_an_estimator_that_never_fills_the_limit_ends_the_search() -> None:
    asked: List[int] = []

    def constant(job: TrainingJob) -> Estimate:
        asked.append(job.batch_size)
        return Estimate(5, 5, 5, dict.fromkeys(PART_NAMES, 0), "constant", "h200", job)

    assert largest_that_fits(TrainingJob(1), constant, 10) is not None
    assert len(asked) < 40
