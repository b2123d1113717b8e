"""The structural estimator against traced training steps, across formats, and its own books."""

from __future__ import annotations

import json
import tarfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Dict, Tuple

import pytest

from lab.structural_step import main, table
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.allocator.allocator import FREE
from slurm_gpumem.estimators.allocator.tape import Tape
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.structural.estimator import StepPlan, estimate, rebuild, replay, simulate
from slurm_gpumem.estimators.structural.layers import convolutions, layers
from slurm_gpumem.estimators.structural.stream import Stream
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import MIB
from tests.support.timing import best_cpu_s, slowness

DATA = Path(__file__).parent / "data" / "structural"
ARCHIVE = Path(__file__).parent.parent / "summaries" / "fixtures" / "summaries.tar.xz"
EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "examples" / "small-cnn.txt"
H200 = find_gpu("h200")


@lru_cache(maxsize=1)
def real_summaries() -> Dict[str, str]:
    """The parsers' fixtures: real texts of all formats."""
    with tarfile.open(ARCHIVE) as archive:
        texts = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None and not member.name.startswith("keras-"):
                texts[Path(member.name).name] = file.read().decode("utf-8", errors="replace")
        return texts


def peak(name: str, **job: object) -> int:
    summary = read_summary(real_summaries()[name])
    return estimate(summary, TrainingJob(**{"batch_size": 32, **job}), H200).peak_mib  # type: ignore[arg-type]


@cache
def traced_step(name: str, optimizer: str) -> Tuple[int, int]:
    """Batch size and peak of a real training step, traced once for all texts of the model."""
    torch = pytest.importorskip("torch")
    from tests.estimators.meta_trace import peak_of_training
    from tests.estimators.structural_models import MODELS

    build, shape = MODELS[name]
    return shape[0], peak_of_training(build, lambda: torch.empty(shape), optimizer)


@pytest.mark.parametrize(("columns", "optimizer"), [("full", "adam"), ("plain", "sgd-momentum")])
@pytest.mark.parametrize("name", ["small-cnn", "residual", "inverted", "unet", "mlp", "gated"])
def test_the_rebuilt_step_allocates_what_a_traced_real_one_does(
    name: str, columns: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, traced = traced_step(name, optimizer)
    job = TrainingJob(batch_size=batch, optimizer=optimizer)
    # A meta device has neither cuBLAS nor cuDNN, and its sums share nothing: no workspaces on either side.
    monkeypatch.setattr(convolutions, "convolution_bytes", lambda told, rows: (0, 0, 0))
    monkeypatch.setattr(layers, "sum_bytes", lambda inputs, outputs: 0)
    gpu = H200._replace(cublas_workspace_bytes=0)
    summary = read_summary(DATA / f"{name}-{columns}.txt")
    rebuild.cache_clear()
    rebuilt = simulate(summary, job, gpu)[1].stats.peak_allocated
    rebuild.cache_clear()
    tolerance = 0.05 if columns == "full" else 0.08
    assert rebuilt == pytest.approx(traced, rel=tolerance), (
        f"{rebuilt / MIB:.1f} against {traced / MIB:.1f} MiB"
    )


def test_parts_add_up_to_the_peak_and_the_floor_leaves_out_fragmentation() -> None:
    result = run("structural", read_summary(EXAMPLE), TrainingJob(batch_size=256), H200)
    assert result.estimator == "structural"
    assert tuple(result.parts) == PART_NAMES
    assert sum(result.parts.values()) == result.peak_mib
    assert result.floor_mib == result.peak_mib - result.parts["fragmentation"]
    assert result.request_mib > result.peak_mib


@pytest.mark.parametrize(
    "other",
    [
        "torchinfo-1.8.0-depth20-resnet50.txt",
        "torchinfo-1.8.0-depth3-resnet50.txt",
        "print-torch-print-resnet50.txt",
        "torchsummary-1.5.1-open-resnet50.txt",
    ],
)
def test_resnet50_needs_the_same_whichever_tool_wrote_its_summary(other: str) -> None:
    assert peak(other) == pytest.approx(peak("torchinfo-1.8.0-full-resnet50.txt"), rel=0.1)


def test_checkpointed_blocks_keep_their_input_and_are_computed_again() -> None:
    summary = read_summary(real_summaries()["torchinfo-1.8.0-depth20-resnet50.txt"])
    kept = estimate(summary, TrainingJob(batch_size=64), H200)
    again = estimate(summary, TrainingJob(batch_size=64, checkpointing=True), H200)
    assert again.parts["activations"] < 0.5 * kept.parts["activations"]
    assert again.parts["weights"] == kept.parts["weights"]
    walk, _ = simulate(summary, TrainingJob(batch_size=64, checkpointing=True), H200)
    assert len(walk.tape.segments) == 16
    plan = StepPlan(states=0, temporaries=0, cublas_workspace=0, steps=4)
    left = [replay(walk.tape, plan._replace(steps=steps)).stats.allocated for steps in (1, 4)]
    # Blocks may hold up to a MiB more than was asked for, and differ from step to step in that.
    assert left[1] == pytest.approx(left[0], rel=0.05)


def test_hidden_blocks_are_assumed_and_widen_the_request() -> None:
    hidden = read_summary(real_summaries()["torchinfo-1.8.0-depth3-bert.txt"])
    shown = read_summary(real_summaries()["torchinfo-1.8.0-depth20-bert.txt"])
    job = TrainingJob(batch_size=32)
    guess, known = estimate(hidden, job, H200), estimate(shown, job, H200)
    assert any("usual ones" in line for line in guess.assumptions)
    assert guess.peak_mib == pytest.approx(known.peak_mib, rel=0.15)
    assert guess.request_mib / guess.peak_mib > known.request_mib / known.peak_mib


def test_a_freed_tensor_is_never_freed_twice_and_nothing_leaks() -> None:
    for name in ("torchinfo-1.8.0-depth20-gpt2.txt", "torchsummary-1.5.1-open-resnet50.txt"):
        summary = read_summary(real_summaries()[name])
        job = TrainingJob(batch_size=4, optimizer="sgd")
        walk, two = simulate(summary, job, H200)
        plan = StepPlan(states=0, temporaries=0, cublas_workspace=0, steps=6)
        # The allocator raises on a second free; what stays after more steps shows a leak.
        more = replay(walk.tape, plan).stats
        fewer = replay(walk.tape, plan._replace(steps=2)).stats
        assert more.allocated == fewer.allocated, name
        assert more.peak_allocated <= two.stats.peak_allocated


def test_a_tape_of_one_product_replays_to_its_own_sizes() -> None:
    tape = Tape()
    x = tape.new((), MIB, 4, grad=False)
    tape.inputs.append(x.store)
    weight = tape.param(2 * MIB)
    out = tape.op((x,), tape.new((), MIB, 4), saved=(x,), params=(weight,), matmul=True)
    tape.survivors.append(out)
    tape.close()
    plan = StepPlan(states=0, temporaries=0, cublas_workspace=0, steps=1)
    result = replay(tape, plan)
    # Weight 2, input 4, output 4, its gradient 4, the weight's gradient 2.
    assert result.stats.peak_allocated == 16 * MIB
    assert result.phase == "backward"
    assert FREE < 0


def test_small_tensors_stand_before_a_product_that_comes_first() -> None:
    tape = Tape()
    x = tape.new((), MIB, 4, grad=False)
    tape.inputs.append(x.store)
    out = tape.op((x,), tape.new((), MIB, 4), saved=(x,), params=(tape.param(2 * MIB),), matmul=True)
    tape.survivors.append(out)
    tape.close()
    tape.returned = 1
    without = Stream(tape)
    tape.dust = 512
    stream = Stream(tape)
    assert (without.forward_matmul, stream.forward_matmul) == (0, 1)
    assert stream.forward[0][1] == 512
    assert stream.returned == without.returned + (without.returned >= 0)
    assert stream.backward[-1][1] == FREE


def test_the_listing_shows_every_operation_and_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(EXAMPLE), "--batch-size", "256"]) == 0
    printed = capsys.readouterr().out
    assert "MaxPool2d" in printed
    assert "peak allocated" in printed
    walk, result = simulate(read_summary(EXAMPLE), TrainingJob(batch_size=256), H200)
    assert len(table(walk, result)) == len(walk.tape.ops) + 3


def test_the_worked_example_of_the_documentation_is_what_the_commands_print() -> None:
    page = (EXAMPLE.parents[2] / "lab/docs/structural.md").read_text()
    walk, result = simulate(read_summary(EXAMPLE), TrainingJob(batch_size=256), H200)
    for line in table(walk, result):
        assert line.rstrip() in page, line


@pytest.mark.timing
def test_an_estimate_takes_milliseconds() -> None:
    # docs/estimation.md has the measured figures.
    summary = read_summary(real_summaries()["torchinfo-1.8.0-full-resnet50.txt"])
    best = best_cpu_s(lambda: estimate(summary, TrainingJob(batch_size=128), H200), 7)
    assert best < 0.030 * slowness()


def test_unknown_rows_are_estimated_not_refused() -> None:
    text = real_summaries()["torchinfo-1.8.0-depth20-resnet50.txt"].replace("BatchNorm2d", "HomeMadeNorm")
    try:
        result = estimate(read_summary(text), TrainingJob(batch_size=32), H200)
    except GpumemError:
        pytest.fail("a summary with unknown classes must still get an estimate")
    assert result.peak_mib == pytest.approx(peak("torchinfo-1.8.0-depth20-resnet50.txt"), rel=0.15)
    json.dumps(dict(result.parts))


def test_a_printed_detector_is_taken_at_the_size_to_which_it_brings_its_images() -> None:
    text = """Detector(
  (backbone): Sequential(
    (0): Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    (1): BatchNorm2d(64, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    (2): ReLU(inplace=True)
    (3): Conv2d(64, 256, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
  )
  (transform): GeneralizedRCNNTransform(
      Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
      Resize(min_size=(800,), max_size=1333, mode='bilinear')
  )
)
"""
    small = text.replace("min_size=(800,), max_size=1333", "min_size=(400,), max_size=400")
    job = TrainingJob(batch_size=8)
    large, half = (estimate(read_summary(printed), job, H200) for printed in (text, small))
    assert any("an image of 800 x 800, as the model resizes it" in line for line in large.assumptions)
    assert large.parts["activations"] == pytest.approx(4 * half.parts["activations"], rel=0.1)
