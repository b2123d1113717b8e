"""What measured runs of similar models teach about a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Sequence

from lab.fit.folds import fold_of_name, name_of
from lab.fit.similar_models import make, only, to_json
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.corrected.similar import (
    Conditions,
    NeighbourRuns,
    Run,
    SimilarModels,
    from_json,
    nearest,
    neighbour_runs,
)
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
BOTTLENECK = frozenset({"ResNet", "Bottleneck", "Conv2d", "BatchNorm2d", "ReLU"})
WINDOWS = frozenset({"Swin", "WindowAttention", "Linear", "LayerNorm", "GELU"})
PLAIN = frozenset({"Sequential", "Conv2d", "ReLU"})
MODELS = ("timm/resnet50", "timm/resnet101", "timm/swin_tiny", "own/plain")


def run(model: int, beyond: float, *, amp: float = 0.0, activations: float = 0.8) -> Run:
    return Run(model, beyond, activations, amp, 9.0)


def known() -> SimilarModels:
    return make(
        MODELS,
        [
            ("complete", BOTTLENECK, run(0, 0.10)),
            ("complete", BOTTLENECK, run(1, 0.20)),
            ("complete", BOTTLENECK, run(1, 0.60, amp=1.0)),
            ("complete", WINDOWS, run(2, -0.30)),
            ("complete", PLAIN, run(3, 0.0)),
        ],
    )


def job(activations: float = 0.8, amp: float = 0.0) -> Conditions:
    return Conditions(activations, amp, 9.0)


def told(classes: Sequence[str], **changes: float) -> NeighbourRuns:
    return neighbour_runs(known().near("complete", frozenset(classes)), job(**changes))


def test_models_of_the_same_classes_teach_and_others_are_not_heard() -> None:
    assert told(BOTTLENECK).beyond > 0.05
    assert told(WINDOWS).beyond < -0.1
    assert told({"Mystery", "Puzzle"}).beyond == 0


def test_without_similar_models_nothing_is_moved_and_the_spread_is_large() -> None:
    unknown, known_one = told({"Mystery"}), told(PLAIN)
    assert unknown.beyond == 0.0
    assert unknown.spread > 2 * known_one.spread


def test_runs_of_the_same_precision_count_more() -> None:
    assert told(BOTTLENECK, amp=1.0).beyond > told(BOTTLENECK).beyond


def test_a_job_of_few_activations_is_moved_less() -> None:
    assert abs(told(WINDOWS, activations=0.2).beyond) < abs(told(WINDOWS).beyond)


def test_models_that_are_left_out_are_not_heard() -> None:
    near = known().near("complete", BOTTLENECK)
    assert neighbour_runs(near, job(), frozenset({0, 1})).beyond == 0
    others = only(known(), lambda name: name == "own/plain")
    assert neighbour_runs(others.near("complete", WINDOWS), job()).beyond == 0


def test_the_nearest_is_named() -> None:
    near = known().near("complete", BOTTLENECK)
    assert nearest(known().near("complete", WINDOWS), job(), known()) == "timm/swin_tiny"
    assert nearest(near, job(amp=1.0), known()) == "timm/resnet101"
    assert nearest((), job(), known()) == ""


def test_texts_of_another_group_do_not_teach() -> None:
    assert known().near("hidden", BOTTLENECK) == ()


def test_a_file_says_what_was_written() -> None:
    again = from_json(json.loads(json.dumps(to_json(known()))))
    assert (again.models, again.weights) == (known().models, known().weights)
    assert dict(again.groups) == known().groups


def test_the_same_model_of_two_libraries_is_one_and_its_sister_another() -> None:
    assert name_of("torchvision/resnet50") == name_of("transformers/resnet-50")
    assert fold_of_name("torchvision/resnet50") == fold_of_name("transformers/resnet-50")
    assert name_of("timm/resnet50") != name_of("timm/resnet101")
    assert name_of("cnn/0279-dense") != name_of("cnn/0278-dense")


def test_an_estimate_names_the_measured_models_that_it_learned_from() -> None:
    text = (EXAMPLES / "resnet50.txt").read_text()
    found = registry.run("corrected", read_summary(text), TrainingJob(32), find_gpu("h200"))
    said = next(line for line in found.assumptions if line.startswith("corrected by"))
    assert "resne" in said
