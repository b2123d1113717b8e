"""The estimator `corrected`: its batch sizes, its coverage, and where it knows that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fit.folds import group_of
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.corrected.estimator import anchors
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary

SMALL = Path(__file__).parents[2] / "docs" / "examples" / "small-cnn.txt"


def _estimate(text: str, batch: int = 64, gpu: str = "h200"):
    return registry.run("auto", read_summary(text), TrainingJob(batch), find_gpu(gpu))


def test_default_estimate_is_corrected_and_states_its_coverage() -> None:
    found = _estimate(SMALL.read_text())
    assert found.estimator == "corrected"
    assert found.margin.coverage == 0.98
    assert found.floor_mib <= found.peak_mib <= found.request_mib
    assert sum(found.parts.values()) == found.peak_mib
    assert min(found.parts.values()) >= 0


@pytest.mark.parametrize("name", ["small-cnn.txt", "resnet50.txt"])
def test_larger_batches_never_need_less(name: str) -> None:
    summary = read_summary((SMALL.parent / name).read_text())
    batches = [*range(1, 40), *range(61, 68), *range(120, 136), 200, 255, 256, 257, 1000, 1024, 1025]
    found = [registry.run("corrected", summary, TrainingJob(batch), find_gpu("h200")) for batch in batches]
    for field in ("peak_mib", "request_mib"):
        values = [getattr(estimate, field) for estimate in found]
        assert values == sorted(values)


def test_a_batch_between_two_powers_of_two_needs_what_lies_between() -> None:
    text = SMALL.read_text()
    below, between, above = (_estimate(text, batch) for batch in (64, 96, 128))
    assert abs(between.peak_mib - (below.peak_mib + above.peak_mib) / 2) <= 1
    assert between.job.batch_size == 96
    assert sum(between.parts.values()) == between.peak_mib


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8, 100, 1023])
def test_anchors_share_a_batch_out_completely(batch: int) -> None:
    found = anchors(batch)
    assert sum(share for share, _ in found) == 1
    assert sum(share * size for share, size in found) == batch


def test_three_dimensional_convolutions_get_a_warning() -> None:
    text = SMALL.read_text().replace("Conv2d", "Conv3d")
    assert any("3-D convolutions" in warning for warning in _estimate(text).warnings)


def test_state_space_layers_get_a_warning_and_a_lower_coverage() -> None:
    text = SMALL.read_text().replace("Sequential", "MambaMixer")
    found = _estimate(text)
    assert any("MambaMixer" in warning for warning in found.warnings)
    assert found.margin.coverage is not None
    assert found.margin.coverage < 0.98
    assert found.request_mib > _estimate(SMALL.read_text()).request_mib


def test_another_gpu_is_said_to_be_unmeasured() -> None:
    said = _estimate(SMALL.read_text(), gpu="a100").assumptions
    assert any("unmeasured" in line for line in said)


def test_sizes_and_libraries_of_one_architecture_are_one_group() -> None:
    assert group_of("timm/resnet18") == group_of("torchvision/resnet50") == "resnet"
    assert group_of("cnn/0279-dense") != group_of("cnn/0278-dense")
