"""The work of a step from a trace: the same arithmetic as from layers, with what only a trace knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.traced_work import line_of, load_traced, write_traced
from lab.utilization_runs import Solo, load_solo
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.trace_types import Kernel, Trace, TracedJob
from slurm_gpumem.utilization.model import packaged
from slurm_gpumem.utilization.predict import TRACE, predict, trace_quality, with_utilization, work_of_trace
from slurm_gpumem.utilization.roofline import rates_of, step_times
from slurm_gpumem.utilization.work import KINDS, StepWork, launches
from tests.summaries.test_own_format import SUMMARY
from tests.support.timing import best_cpu_s, slowness
from tests.utilization.work_sums import total_flops

H200 = find_gpu("h200")
KERNELS = (
    Kernel("conv", "forward", "fp32", ((0, 1024), (64,), (64,), (1,), (1,), (1,), (0,)), (0, 1 << 19), 4),
    Kernel("gemm", "forward", "fp32", ((0, 32), (128,), (64,), (1,)), (1 << 15, 1 << 12), 2),
    Kernel("norm", "forward", "bf16", ((0, 65536), (64,)), (512, 1 << 18), 1),
    Kernel("view", "forward", "fp32", (), (0,), 5),
    Kernel("pointwise", "backward", "fp32", ((0, 4096), (0, 4096)), (0, 1 << 15), 3),
    Kernel("foreach", "optimizer", "fp32", ((61,), (1 << 20,)), (3 << 22,), 4),
)


def traced(**how: object) -> Trace:
    return Trace(TracedJob(8, **how), "meta", (), (), (), kernels=KERNELS)  # type: ignore[arg-type]


def work(batch: int = 8, **how: object) -> StepWork:
    return work_of_trace(traced(), TrainingJob(batch, **how), 4 << 20)  # type: ignore[arg-type]


def kinds(made: StepWork) -> set[str]:
    return {KINDS[key[0]] for key in made.kernels}


def test_arithmetic_follows_the_batch() -> None:
    assert total_flops(work(8)) == 8 * (4 * 2 * 1024 * 64 * 64 + 2 * 2 * 32 * 128 * 64)
    assert total_flops(work(16)) == 2 * total_flops(work(8))


def test_products_take_the_units_that_the_job_allows() -> None:
    assert {"gemm_fp32", "conv_tf32"} <= kinds(work())
    assert {"gemm_tf32", "conv_tf32"} <= kinds(work(precision="tf32"))


def test_few_threads_that_go_through_many_numbers_take_long_and_leave_the_gpu_idle() -> None:
    sizes = ((64,), (0, 128))  # 64 places of a short series, 128 channels for each of the batch
    kernel = Kernel("serial", "forward", "fp32", sizes, (0, 1 << 16), 1)
    trace = traced()._replace(kernels=(kernel,))
    made = work_of_trace(trace, TrainingJob(1024), 4 << 20)
    times = step_times(made, rates_of(H200), packaged("trace").sources[TRACE].coefficients)
    assert times.gpu > 0.01
    assert times.busy < 0.02 * times.gpu


def test_gradients_of_weights_are_told_from_those_of_inputs() -> None:
    def convolution(kind: str, phase: str, *sizes: int) -> Kernel:
        return Kernel(kind, phase, "fp32", tuple((size,) for size in sizes), (1 << 20,))

    kernels = (
        convolution("conv", "forward", 6272, 64, 288, 1, 9, 1, 0),
        convolution("conv", "backward", 6272, 32, 576, 1, 9, 1, 0),
        convolution("conv", "backward", 288, 64, 6272, 1, 9, 1, 0),
        convolution("depthwise", "forward", 6272, 1, 9, 32, 9, 1, 0),
        convolution("depthwise", "backward", 6272, 1, 9, 32, 9, 1, 0),
        convolution("depthwise", "backward", 9, 1, 6272, 32, 9, 1, 0),
    )
    made = work_of_trace(traced()._replace(kernels=kernels), TrainingJob(8), 1 << 20).kernels
    blocks = {KINDS[kind]: (number, count) for (kind, _, _, number), count in made.items()}
    assert {KINDS[key[0]] for key in made} == {"conv_tf32", "weight_tf32", "depthwise_fp32", "taps_fp32"}
    assert blocks["depthwise_fp32"] == (6272 * 32 // 512, 2)
    assert blocks["taps_fp32"] == (9 * 32, 1)


def test_micro_batches_repeat_the_passes_and_not_the_optimizer() -> None:
    once, thrice = work(), work(grad_accumulation=3)
    # Of 61 tensors three launches a pass, four passes; a norm in bfloat16 is two kernels.
    assert launches(once) == 4 + 2 + 2 + 3 + 4 * 3
    assert launches(thrice) == 3 * (4 + 2 + 2 + 3) + 4 * 3
    assert thrice.host.views == 3 * once.host.views


def test_a_summary_with_kernels_is_predicted_from_them() -> None:
    summary = SUMMARY._replace(trace=SUMMARY.trace._replace(kernels=KERNELS))  # type: ignore[union-attr]
    job = TrainingJob(4, optimizer="adam")
    plain = registry.run("trace", summary, job, H200)
    found = with_utilization(plain, H200, summary).utilization
    assert found is not None
    assert found.source == TRACE
    older = SUMMARY._replace(trace=SUMMARY.trace._replace(kernels=()))  # type: ignore[union-attr]
    read = with_utilization(plain, H200, older).utilization
    assert read is not None
    assert read.source == "summary"


def test_the_kept_kernels_give_the_work_of_their_traces(tmp_path: Path) -> None:
    run = load_solo()[0]
    job = TrainingJob(8)
    one: Solo = run._replace(key="a", job=job)
    write_traced([line_of("a", traced(), job, 1 << 20), line_of("b", traced(), job, 1)], tmp_path / "x.xz")
    found = load_traced([one], tmp_path / "x.xz")
    assert set(found) == {"a"}
    assert found["a"].work == work(8)


@pytest.mark.timing
def test_a_trace_costs_little_beside_the_memory_estimate() -> None:
    many = tuple(kernel._replace(bytes=(n, n)) for n in range(60) for kernel in KERNELS)
    trace = traced()._replace(kernels=many)
    model = packaged()

    def work() -> None:
        predict(work_of_trace(trace, TrainingJob(64), 1 << 20), trace_quality(trace), H200, model, TRACE)

    # 360 sorts of kernels, more than most networks have, measured at about 2 ms.
    assert best_cpu_s(work, 20) < 0.01 * slowness()
