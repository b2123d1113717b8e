"""The work of a step: arithmetic and kernels as the layers' shapes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import simulate
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.work import KINDS, StepWork, launches, step_work
from tests.utilization.work_sums import kind_totals, total_flops

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
H200 = find_gpu("h200")


def work(name: str, **how: object) -> StepWork:
    job = TrainingJob(**{"batch_size": 64, **how})  # type: ignore[arg-type]
    return step_work(simulate(read_summary(EXAMPLES / f"{name}.txt"), job, H200)[0].tape, job)


@pytest.mark.parametrize(
    ("name", "forward_gmacs"), [("resnet50", 4.09), ("mobilenetv3", 0.217), ("vit", 17.56)]
)
def test_arithmetic_is_three_times_the_published_forward(name: str, forward_gmacs: float) -> None:
    # Forward, and as much again for the gradients of input and weight; tiles reach beyond the edges.
    published = 3 * 2 * forward_gmacs * 1e9 * 64
    assert 0.97 * published < total_flops(work(name)) < 1.4 * published


def test_half_precision_moves_the_products_to_faster_kernels() -> None:
    def kinds(precision: str) -> set[str]:
        totals = kind_totals(work("vit", precision=precision))
        return {KINDS[kind] for kind, (_, flops, _) in enumerate(totals) if flops}

    assert kinds("fp32") == {"gemm_fp32", "conv_tf32", "weight_tf32", "attention_fp32"}
    assert kinds("tf32") == {"gemm_tf32", "conv_tf32", "weight_tf32", "attention_fp32"}
    assert kinds("amp-bf16") == {"gemm_half", "conv_half", "weight_half", "attention_half"}


def test_depthwise_convolutions_are_kernels_of_their_own() -> None:
    made = work("mobilenetv3")
    totals = kind_totals(made)
    layers = totals[KINDS.index("taps_fp32")][0]
    assert layers > 10
    # Forward and the input's gradient: each as often as the weight's.
    assert totals[KINDS.index("depthwise_fp32")][0] == 2 * layers
    # A weight's gradient has a block for each of its numbers: 16 channels of 3 x 3 at least.
    assert min(key[3] for key in made.kernels if KINDS[key[0]] == "taps_fp32") >= 16 * 9


def test_pooling_is_no_ordinary_elementwise_kernel() -> None:
    totals = kind_totals(work("resnet50"))
    assert totals[KINDS.index("pool")][0] == 2, "the one before the first stage, and its gradient"


def test_statistics_of_few_channels_leave_multiprocessors_idle() -> None:
    norms = {key[3] for key in work("resnet50").kernels if KINDS[key[0]] == "norm"}
    assert {64, 128, 256, 512, 1024, 2048} <= norms


def test_accumulated_batches_repeat_the_passes_but_not_the_optimizer() -> None:
    once, twice = work("resnet50"), work("resnet50", grad_accumulation=2)
    optimizer = KINDS.index("optimizer")
    assert total_flops(twice) == 2 * total_flops(once)
    assert kind_totals(twice)[optimizer] == kind_totals(once)[optimizer]
    assert twice.host.products == 2 * once.host.products
    assert twice.host.tensors == once.host.tensors


def test_checkpointing_runs_the_forward_pass_twice() -> None:
    plain, again = work("vit"), work("vit", checkpointing=True)
    assert total_flops(again) == pytest.approx(total_flops(plain) * 4 / 3, rel=0.05)


def test_a_larger_batch_has_as_many_kernels() -> None:
    # But for cuDNN's copies, which it makes for some sizes and not for others.
    few, many = launches(work("resnet50", batch_size=8)), launches(work("resnet50", batch_size=256))
    assert few == pytest.approx(many, rel=0.1)
