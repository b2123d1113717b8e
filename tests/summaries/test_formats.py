"""Every format in the registry has a text that proves it, here or among the fixtures of the real tools."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict

import pytest

import slurm_gpumem
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.formats import BY_NAME, FORMATS
from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.reader import parse
from slurm_gpumem.summaries.types import UNKNOWN_KIND
from tests.summaries.saved_summaries import one
from tests.summaries.test_own_format import SUMMARY as OWN

SAMPLES = Path(__file__).resolve().parent / "samples"
PACKAGE = Path(slurm_gpumem.__file__).parent
FIXTURES = {
    "torchsummary": "torchsummary-1.5.1-open-resnet18",
    "modelsummary": "modelsummary-1.1.7-inputs-resnet18",
    "pytorch-model-summary": "pytorch-model-summary-0.1.2-all-resnet18",
    "torchinfo": "torchinfo-1.8.0-depth20-resnet18",
    "torch-summary": "torch-summary-1.4.5-columns-resnet18",
    "print(model)": "print-torch-print-resnet18",
    "modelsummary hierarchy": "modelsummary-1.1.7-hierarchy-resnet18",
}


def samples() -> Dict[str, str]:
    """A text for each format, by its name: samples/NAME.txt, or a fixture that its tool has made."""
    found = {name: one(stem) for name, stem in FIXTURES.items()}
    found["gpumem"] = to_json(OWN)
    return {**found, **{path.stem: path.read_text() for path in SAMPLES.glob("*.txt")}}


TEXTS = samples()


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(FORMATS)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample_is_recognised_and_every_line_of_it_understood(name: str) -> None:
    summary = parse(TEXTS[name], origin=name)
    assert summary.format == name
    assert summary.shows == BY_NAME[name].shows
    assert summary.layers
    assert not [layer.line for layer in summary.layers if layer.kind == UNKNOWN_KIND]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample_can_be_estimated(name: str) -> None:
    summary = parse(TEXTS[name], origin=name)
    found = registry.run("corrected", summary, TrainingJob(batch_size=8), find_gpu("h200"))
    assert 0 < found.peak_mib <= found.request_mib
    assert found.parts["weights"] >= summary.total_params * 4 // 2**20


def test_no_estimator_compares_a_format_s_name() -> None:
    """What a text can show is asked of `ModelSummary.shows`."""
    for room in ("estimators", "utilization", "submission"):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                assert not (
                    isinstance(node, ast.Attribute)
                    and node.attr == "format"
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "summary"
                ), f"{path}:{node.lineno} looks at a summary's format"
