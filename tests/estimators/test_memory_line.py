"""The memory line: as few pieces as will do, within one per cent, and nothing but what it says."""

from __future__ import annotations

import contextlib
import math
import random
from pathlib import Path
from typing import Callable, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.environment import Environment, in_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.make_line import TOLERANCE, make_line
from slurm_gpumem.estimators.memory_line import (
    MAX_BYTES,
    Knot,
    MemoryLine,
    job_of_words,
    job_words,
    parse_line,
)
from slurm_gpumem.estimators.types import OPTIMIZERS, PRECISIONS, Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.reader import read_summary

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
UNMEASURED = 0.02
GPUS = [find_gpu(name) for name in ("h200", "a100", "v100", "rtx4090")]
Curve = Callable[[int], Tuple[int, int]]


def estimator(curve: Curve, context_share: float = 1.0) -> Callable[[TrainingJob, Gpu], Estimate]:
    """An estimator whose tensors take `curve` of the batch and whose request holds more of the context."""

    def estimate(job: TrainingJob, gpu: Gpu) -> Estimate:
        peak, request = curve(job.batch_size)
        context = gpu.context_for(conv=True, matmul=False)
        return Estimate(
            peak_mib=peak + context,
            request_mib=request + round(context * context_share),
            floor_mib=peak,
            parts={"context": context},
            estimator="drawn",
            gpu=gpu.name,
            job=job,
        )

    return estimate


CURVES = {
    "straight": lambda b: (300 + 70 * b, 400 + 95 * b),
    "flat": lambda b: (2000, 2600),
    "bent": lambda b: (1500 + max(0, 60 * (b - 100)), 1900 + max(0, 80 * (b - 90))),
    "steps": lambda b: (500 + 20 * 40 * -(-b // 40), 700 + 25 * 40 * -(-b // 40)),
    "curved": lambda b: (400 + int(20 * b**1.15), 600 + int(25 * b**1.2)),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("batch", [1, 6, 64])
def test_every_batch_from_a_quarter_to_four_times_is_within_one_per_cent(name: str, batch: int) -> None:
    estimate = estimator(CURVES[name], 1.2)
    line = make_line("abcd", TrainingJob(batch), estimate)
    for gpu in GPUS:
        for other in range(-(-batch // 4), batch * 4 + 1):
            full = estimate(TrainingJob(other), gpu)
            peak, request = line.memory(other, gpu)
            assert peak == pytest.approx(full.peak_mib, rel=TOLERANCE)
            assert request == pytest.approx(full.request_mib, rel=TOLERANCE)
    assert (line.context, line.context_peak, line.context_request) == ("conv", 100, 120)
    assert len(line.text()) < 100 if name in ("straight", "flat") else 1200


def test_more_batch_never_needs_less_where_the_estimate_says_so() -> None:
    draw = random.Random(5)
    jumps = sorted(draw.sample(range(20, 400), 30))
    line = make_line(
        "abcd", TrainingJob(100), estimator(lambda b: (_stairs(jumps, b), 2 * _stairs(jumps, b)))
    )
    peaks = [line.memory(batch, GPUS[0]) for batch in range(1, 900)]
    assert peaks == sorted(peaks)


def _stairs(jumps: list[int], batch: int) -> int:
    return 1000 + 100 * sum(jump <= batch for jump in jumps)


def test_an_estimate_too_rough_for_a_line_is_drawn_coarser_rather_than_longer() -> None:
    line = make_line("abcd", TrainingJob(500), estimator(lambda b: (9000 + b * b * 7919 % 9000, 30000)))
    assert len(line.text()) <= MAX_BYTES
    assert parse_line(line.text()) == line


def test_lines_of_real_models_say_what_the_estimate_says() -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    job = TrainingJob(8, optimizer="sgd", precision="amp-bf16")
    line = make_line(summary.fingerprint, job, lambda job, gpu: registry.run("auto", summary, job, gpu))
    for batch in (2, 8, 21, 32):
        for gpu in GPUS:
            full = registry.run("auto", summary, job._replace(batch_size=batch), gpu)
            peak, request = line.memory(batch, in_environment(gpu, Environment()))
            # A V100 has no flash attention: a line made with it is a little high there, never low.
            above = 2 * TOLERANCE if registry.by_trace(full) and gpu.name == "v100" else TOLERANCE
            assert 1 - TOLERANCE <= peak / full.peak_mib <= 1 + above
            # What unmeasured workspaces may add differs between batches; a line has one number for all.
            rough = UNMEASURED if registry.by_trace(full) and not gpu.workspaces_measured else 0.0
            assert 1 - TOLERANCE - rough <= request / full.request_mib <= 1 + above + rough


def test_a_line_of_a_stored_trace_is_off_by_two_per_cent_at_most() -> None:
    batch, summary = 128, read_summary(EXAMPLES / "resnet50.txt")
    made: List[int] = []

    def estimated(job: TrainingJob, gpu: Gpu) -> Estimate:
        made.append(job.batch_size)
        return registry.run("auto", summary, job, gpu)

    job = TrainingJob(batch)
    line = make_line(summary.fingerprint, job, estimated)
    assert len(made) < 120
    gpu = find_gpu("h200")
    for other in range(batch // 4, 4 * batch, batch // 2 + 1):
        full = registry.run("auto", summary, job._replace(batch_size=other), gpu)
        peak, request = line.memory(other, in_environment(gpu, Environment()))
        assert peak == pytest.approx(full.peak_mib, rel=2 * TOLERANCE)
        assert request == pytest.approx(full.request_mib, rel=2 * TOLERANCE)


def test_a_line_of_a_model_that_lives_by_workspaces_asks_for_them_where_they_are_unmeasured() -> None:
    def estimate(job: TrainingJob, gpu: Gpu) -> Estimate:
        plain = estimator(CURVES["straight"])(job, gpu)
        more = 0 if gpu.workspaces_measured else plain.peak_mib * 31 // 100
        return plain._replace(estimator="trace", request_mib=plain.request_mib + more)

    line = make_line("abcd", TrainingJob(64), estimate)
    assert line.unmeasured_percent == pytest.approx(31, abs=1)
    known = GPUS[0]
    peak, request = line.memory(64, known)
    assert line.memory(64, known._replace(workspaces_measured=False)) == (
        peak,
        request + peak * (line.unmeasured_percent or 0) // 100,
    )


def test_beyond_its_knots_it_goes_on_straight_and_warns() -> None:
    line = make_line("abcd", TrainingJob(64), estimator(CURVES["straight"]))
    far = line.estimate(1000, GPUS[0])
    assert far.peak_mib == pytest.approx(
        300 + 70_000 + GPUS[0].context_for(conv=True, matmul=False), rel=0.02
    )
    assert "16 to 256, not 1000" in far.warnings[0]
    assert line.estimate(64, GPUS[0]).warnings == ()


JOBS = st.fixed_dictionaries(
    {
        "batch_size": st.just(7),
        "optimizer": st.sampled_from(OPTIMIZERS),
        "precision": st.sampled_from(PRECISIONS),
        "checkpointing": st.booleans(),
        "channels_last": st.booleans(),
        "grad_accumulation": st.sampled_from((1, 4)),
        "loss": st.sampled_from(("cross-entropy", "mse")),
        "input_dtype": st.sampled_from(("auto", "uint8")),
    }
).map(lambda fields: TrainingJob(**fields))


@given(JOBS)
def test_a_job_in_words_is_the_same_job(job: TrainingJob) -> None:
    assert job_of_words(job_words(job), 7) == job


@settings(max_examples=100)
@given(st.text(alphabet="0123456789,:/.-abcdefx_=\x00é ", max_size=80), st.integers(0, 60))
def test_any_text_is_a_line_or_a_usage_error(junk: str, at: int) -> None:
    good = "1/abcd/corrected/adam.fp32/both.100.118/64/16,100,200:64,300,400/-48,-60"
    for text in (junk, good[:at] + junk + good[at:], good[:at] + junk):
        with contextlib.suppress(UsageError):
            assert all(math.isfinite(value) for value in parse_line(text).memory(64, GPUS[0]))


@pytest.mark.parametrize("text", ["", "2/abcd", "1/abcd/x/adam.fp32/both.100.100/64/16,100:64,300,400"])
def test_what_is_no_line_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="memory-line is damaged"):
        parse_line(text)


def test_a_line_survives_its_own_text() -> None:
    line = MemoryLine(
        "abcd", "x", "adam.fp32", "none", 0, 0, 3, (Knot(1, -5, 7),), (Knot(1, 2, 3), Knot(4, 5, 6))
    )
    assert parse_line(line.text()) == line
    moved = line._replace(small_knots=(), small_shift=(-48, 3))
    assert parse_line(moved.text()) == moved
    unmeasured = line._replace(unmeasured_percent=14)
    assert parse_line(unmeasured.text()) == unmeasured
