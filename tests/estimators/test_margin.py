"""Margins: the file, the arithmetic, and how they behave as jobs grow."""

from __future__ import annotations

import json
from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.folds import FOLDS, fold_of_run, kind_of_code
from lab.ground_truth import load_ground_truth_rows
from lab.places import BLIND_CHECKS, HANDWRITTEN, MARGIN_FOLDS
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.margin import LEVELS, between, from_json, packaged
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from tests.support.measured_texts import texts_in, texts_of

GROUPS = sorted(packaged())
MODELS = (
    "torchvision/vit_b_16@224",
    "torchvision/resnet50@224",
    "own/w-relpos-lm@256",
    "own/w-dlrm@16",
    "own/w-cheb@128",
)
BATCHES = [1, 2, 3, 8, 16, 31, 32, 33, 64, 96, 128, 256, 777, 1024]


def summaries_of(model: str) -> List[ModelSummary]:
    """What the tools print of a model, as far as it has shapes."""
    texts = texts_in(HANDWRITTEN)[model] if model.startswith("own/w-") else texts_of(model)
    return [read_summary(texts[tool].rstrip("\n") + "\n") for tool in ("torchinfo_full", "torchinfo")]


@pytest.mark.parametrize("model", MODELS)
def test_from_a_text_the_request_never_falls_and_never_jumps_as_the_batch_grows(model: str) -> None:
    gpu = find_gpu("h200")
    for summary in summaries_of(model):
        found = [registry.run("corrected", summary, TrainingJob(batch), gpu) for batch in BATCHES]
        asked = [one.sure_mib for one in found]
        assert asked == sorted(asked)
        assert [one.peak_mib for one in found] == sorted(one.peak_mib for one in found)
        for before, after in zip(found, found[1:]):
            # A rule that switches would enlarge the request; the margin may only grow about as the peak does.
            assert after.sure_mib / after.peak_mib <= 1.3 * before.sure_mib / before.peak_mib


@pytest.mark.parametrize(
    ("model", "batches", "most"),
    [("torchvision/vgg16@224", (64, 72), 1.2), ("torchvision/vit_b_16@224", (64, 128), 2.2)],
)
def test_a_slightly_larger_batch_asks_for_slightly_more(model: str, batches: List[int], most: float) -> None:
    """VGG-16 asked for 11.0 GiB at batch 64 and for 21.2 at 72."""
    summary = summaries_of(model)[0]
    small, large = (registry.run("auto", summary, TrainingJob(b), find_gpu("h200")) for b in batches)
    assert large.request_mib <= most * small.request_mib


@given(
    group=st.sampled_from(GROUPS),
    peak=st.floats(700, 200_000),
    spread=st.floats(0.005, 1.0),
    batch=st.integers(1, 1024),
)
def test_the_margin_grows_with_coverage_size_and_batch(
    group: str, peak: float, spread: float, batch: int
) -> None:
    margin = packaged()[group]
    margins = [step * margin.unit_mib(peak, batch, spread) for step in margin.steps]
    assert margins == sorted(margins)
    assert margins[0] >= 0
    unit = margin.unit_mib(peak, batch, spread)
    for more in (margin.unit_mib(1.1 * peak, batch, spread), margin.unit_mib(peak, batch + 1, spread)):
        assert unit <= more <= 1.2 * unit * 2


@pytest.mark.parametrize("group", GROUPS)
def test_a_large_jobs_margin_is_no_larger_in_proportion_than_a_small_ones(group: str) -> None:
    margin = packaged()[group]
    parts = [margin.unit_mib(peak, 32, 0.05) / peak for peak in (1000.0, 4000.0, 16_000.0, 64_000.0)]
    assert parts == sorted(parts, reverse=True)


def test_every_group_asks_for_what_was_agreed() -> None:
    coverage = {name: margin.coverage for name, margin in packaged().items()}
    for name in ("complete", "shown", "torchsummary", "hidden"):
        assert coverage[name] == 0.98
    assert coverage["trace"] == 0.99
    assert coverage["written"] == coverage["written-flat"] == 0.95


def test_values_between_two_coverages_lie_on_a_line() -> None:
    values = [100 * level for level in LEVELS]
    for coverage in (0.5, 0.55, 0.9, 0.98, 0.981, 0.995):
        assert between(values, coverage) == pytest.approx(100 * coverage)
    assert between(values, 0.1) == values[0]
    assert between(values, 1.0) == values[-1]


def test_every_fold_has_margins_for_every_group() -> None:
    parts = [from_json(part) for part in json.loads(MARGIN_FOLDS.read_text())]
    assert len(parts) == FOLDS
    assert all(sorted(part) == GROUPS for part in parts)


def test_an_authors_hand_written_networks_are_held_out_together() -> None:
    folds = {}
    for folder in (HANDWRITTEN, *BLIND_CHECKS):
        own = [row for row in load_ground_truth_rows(folder) if kind_of_code(row) == "hand-written"]
        found = {fold_of_run(row) for row in own}
        assert len(found) == 1
        folds[folder] = found.pop()
    assert len(set(folds.values())) == len(folds)
