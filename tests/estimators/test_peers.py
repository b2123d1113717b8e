"""The published estimators beside ours: their formulas on a model small enough to add up by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.formats.comment import PART_NAMES
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary, Shows

RESNET = Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt"
M = 2**20
# 8 Mi parameters; per sample 1 Mi numbers out of the convolution, 1 Mi out of the in-place ReLU.
SUMMARY = ModelSummary(
    format="torchsummary",
    shows=Shows(nesting=False, leading_sizes=False),
    layers=(
        Layer("Sequential", outputs=((-1, M),), leaf=False),
        Layer("Conv2d", outputs=((-1, M),), params=8 * M),
        Layer("ReLU", outputs=((-1, M),)),
    ),
    total_params=8 * M,
    trainable_params=8 * M,
)
GPU = find_gpu("h200")


def _parts_of(summary: ModelSummary, name: str, job: TrainingJob) -> dict[str, int]:
    return {part: size for part, size in registry.run(name, summary, job, GPU).parts.items() if size}


def _parts(name: str, job: TrainingJob) -> dict[str, int]:
    return _parts_of(SUMMARY, name, job)


def test_faketensor_is_the_live_tensors_and_nothing_outside_them() -> None:
    assert _parts("faketensor", TrainingJob(4)) == {
        "weights": 32,
        "gradients": 32,
        "optimizer": 64,
        "activations": 16,
    }
    assert _parts("faketensor", TrainingJob(4, "sgd", "amp-bf16"))["activations"] == 8


def test_deepspeed_counts_sixteen_bytes_a_parameter_with_adam_and_two_more_for_mixed_precision() -> None:
    assert registry.run("deepspeed", SUMMARY, TrainingJob(4), GPU).peak_mib == 8 * 16
    assert registry.run("deepspeed", SUMMARY, TrainingJob(4, precision="amp-fp16"), GPU).peak_mib == 8 * 18
    assert registry.run("deepspeed", SUMMARY, TrainingJob(4, "sgd"), GPU).peak_mib == 8 * 8


@pytest.mark.parametrize("name", [n for n in registry.estimator_names() if n != registry.TRACE])
def test_every_estimator_keeps_the_contract(name: str) -> None:
    for batch in (1, 64):
        estimate = registry.run(name, SUMMARY, TrainingJob(batch), GPU)
        assert set(estimate.parts) == set(PART_NAMES)
        assert sum(estimate.parts.values()) == estimate.peak_mib
        assert estimate.floor_mib <= estimate.peak_mib <= estimate.request_mib
        assert estimate.estimator == name
        assert estimate.gpu == "h200"


def test_an_unknown_estimator_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'horus'"):
        registry.run("horuss", SUMMARY, TrainingJob(1), GPU)


@pytest.mark.parametrize(
    ("shape", "batch", "numbers"),
    [
        ((-1, 3, 5), None, 8 * 15),
        ((4, 3, 5), 4, 8 * 15),
        # A tensor without a batch (position ids) keeps its size.
        ((1, 15), 4, 15),
        # Tokens of all samples flattened into one dimension still grow with the batch.
        ((4 * 16, 5), 4, 8 * 16 * 5),
    ],
)
def test_activations_are_rescaled_from_the_batch_of_the_summary(
    shape: tuple[int, ...], batch: int | None, numbers: int
) -> None:
    summary = SUMMARY._replace(layers=(Layer("Linear", outputs=((*shape, M),)),), batch=batch)
    assert _parts_of(summary, "horus", TrainingJob(8))["activations"] == 4 * numbers


def test_frozen_parameters_have_no_gradients_and_no_states() -> None:
    frozen = SUMMARY._replace(trainable_params=2 * M)
    parts = registry.run("faketensor", frozen, TrainingJob(1), GPU).parts
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (32, 8, 16)


# What the publication's figures 5.11 and 5.12 show for Horus, in MiB.
PUBLISHED_HORUS = {32: 7904, 128: 28923}


@pytest.mark.parametrize("batch", sorted(PUBLISHED_HORUS))
def test_horus_as_the_authors_compute_it_gives_the_published_bars_for_resnet50(batch: int) -> None:
    summary = read_summary(RESNET.read_text())
    found = registry.run("horus-authors", summary, TrainingJob(batch), find_gpu("a100-80gb"))
    assert found.peak_mib == pytest.approx(PUBLISHED_HORUS[batch], abs=2)


def test_the_two_readings_of_horus_differ_in_what_a_gradient_is_of() -> None:
    assert _parts("horus", TrainingJob(4))["gradients"] == 32
    assert _parts("horus-authors", TrainingJob(4))["gradients"] == 4 * 32
