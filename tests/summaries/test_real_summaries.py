"""Summaries made by the real tools, against what the live models said."""

from __future__ import annotations

import functools
from typing import List

import pytest

from slurm_gpumem.summaries.reader import parse
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary
from tests.summaries.saved_summaries import Saved, one, saved_summaries, select

ALL = [saved for saved in saved_summaries().values() if saved.tool != "keras"]
# Tables that show every call of every layer. (Tools that name a module once, or cut at a depth, do not.)
WHOLE = [
    saved
    for saved in (
        select(
            tool="torchinfo", version=("1.7.2", "1.8.0"), label=("depth20", "full", "batch9", "ascii", "bare")
        )
        + select(tool="torchinfo", version="1.8.0", label="verbose")
        + select(tool="torchsummary", label="open")
        + select(tool="torch-summary", label=("columns", "flat"))
    )
    # torchsummary overwrites the number of Swin's windows; the parser warns.
    if (saved.tool, saved.model) != ("torchsummary", "swin")
]
# torchinfo before 1.7, torch-summary, torchsummary and print(model) leave out parameters of no layer (class
# tokens, layer scales) or of layers that are never called; these models have none.
PLAIN = (
    "resnet18",
    "resnet50",
    "unet",
    "audio",
    "volumes",
    "generator",
    "densenet",
    "vgg",
    "regnet",
    "two-inputs",
)
FORMATS = {
    "print": ("print(model)",),
    "modelsummary": ("modelsummary", "torchsummary", "modelsummary hierarchy"),
    "torch-summary": ("torch-summary",),
}


def ids(cases: List[Saved]) -> List[str]:
    return [saved.stem for saved in cases]


@functools.cache
def read(saved: Saved) -> ModelSummary:
    return parse(saved.text, origin=saved.stem)


@pytest.mark.parametrize("saved", ALL, ids=ids(ALL))
def test_the_tool_is_recognised_and_every_line_understood(saved: Saved) -> None:
    summary = read(saved)
    assert summary.format in FORMATS.get(saved.tool, (saved.tool,))
    assert [layer.attributes for layer in summary.layers if layer.kind == UNKNOWN_KIND] == []


COUNTING = [
    saved
    for saved in ALL
    if (saved.tool == "torchinfo" and saved.version in ("1.7.2", "1.8.0"))
    or saved.label == "hierarchy"
    or saved.model in PLAIN
]


@pytest.mark.parametrize("saved", COUNTING, ids=ids(COUNTING))
def test_the_parameters_are_the_live_model_s(saved: Saved) -> None:
    summary = read(saved)
    # A weight of two modules is counted for both, unless the tool sees that the module is the same.
    assert summary.total_params in (saved.params, saved.params_by_module)
    if all(layer.params_known for layer in summary.layers):
        assert sum(layer.params for layer in summary.layers) == summary.total_params
    if saved.params == saved.params_by_module and "hierarchy" not in summary.format:
        assert summary.trainable_params == saved.trainable


@pytest.mark.parametrize("saved", WHOLE, ids=ids(WHOLE))
def test_the_leaves_are_the_live_model_s_calls(saved: Saved) -> None:
    summary = read(saved)
    leaves = [layer for layer in summary.layers if layer.leaf and layer.outputs]
    assert len(leaves) == saved.leaf_calls
    elements = sum(summary.elements(leaf.outputs[0], saved.batch or 4) for leaf in leaves)
    assert elements == saved.elements


BATCHED = [
    saved
    for saved in ALL
    if saved.tool not in ("print", "modelsummary") and saved.label not in ("no-input", "hide-recursive")
]


@pytest.mark.parametrize("saved", BATCHED, ids=ids(BATCHED))
def test_the_batch_is_found(saved: Saved) -> None:
    assert read(saved).batch == saved.batch


DEEP = (
    "bert",
    "gpt2",
    "t5",
    "vit",
    "swin",
    "convnext",
    "densenet",
    "efficientnet",
    "mobilenetv3",
    "resnet50",
)
CUT = select(tool="torchinfo", version="1.8.0", label="depth3", model=DEEP)


@pytest.mark.parametrize("saved", CUT, ids=ids(CUT))
def test_a_tree_cut_at_a_depth_is_recognised(saved: Saved) -> None:
    summary = read(saved)
    assert summary.hidden
    assert any("depth=20" in warning for warning in summary.warnings)
    # Nothing is lost: the blocks carry the parameters of what they hide.
    assert sum(layer.params for layer in summary.layers) in (saved.params, saved.params_by_module)


def test_a_warning_is_short_enough_to_be_read() -> None:
    longest = max((warning for saved in ALL for warning in read(saved).warnings), key=len)
    assert len(longest) <= 132, longest


SHOWN = select(tool="torchinfo", version="1.8.0", label="full")


@pytest.mark.parametrize("saved", SHOWN, ids=ids(SHOWN))
def test_derived_inputs_mostly_agree_with_shown_ones(saved: Saved) -> None:
    """The same model once with and once without the column of inputs."""
    shown = [layer for layer in read(saved).layers if layer.leaf]
    derived = [
        layer
        for layer in parse(one(saved.stem.replace("-full-", "-depth20-")), origin="d").layers
        if layer.leaf
    ]
    assert len(shown) == len(derived)
    # Not the first layer, whose input nothing in the table tells.
    pairs = [
        (one.inputs, other.inputs) for one, other in zip(shown, derived) if one.inputs and other.outputs
    ][1:]
    assert sum(shown_inputs == guess for shown_inputs, guess in pairs) >= 0.9 * len(pairs)
