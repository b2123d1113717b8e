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


NAMED = select(tool=("torchinfo", "print"))


@pytest.mark.parametrize("saved", NAMED, ids=ids(NAMED))
def test_the_root_gives_the_name(saved: Saved) -> None:
    assert read(saved).name == saved.name


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


UNCUT = select(tool="torchinfo", label=("depth20", "full", "columns"))


@pytest.mark.parametrize("saved", UNCUT, ids=ids(UNCUT))
def test_a_whole_tree_hides_nothing(saved: Saved) -> None:
    assert read(saved).hidden == ()


def test_a_block_that_is_cut_off_keeps_its_class() -> None:
    summary = parse(one("torchinfo-1.8.0-depth3-gpt2"), origin="gpt2")
    assert [layer.kind for layer in summary.hidden] == ["GPT2Block"] * 3
    assert "3 x GPT2Block" in " ".join(summary.warnings)


def test_a_shared_module_counts_once() -> None:
    summary = parse(one("torchinfo-1.8.0-full-shared"), origin="shared")
    inner = [layer for layer in summary.layers if layer.name == "inner"]
    assert [(layer.params, layer.repeated) for layer in inner] == [(1056, False), (0, True), (0, True)]
    assert all(layer.outputs == ((4, 32),) for layer in inner)


def test_a_layer_that_forward_never_calls_is_marked() -> None:
    summary = parse(one("torchinfo-1.6.6-columns-transformer"), origin="transformer")
    assert [layer.kind for layer in summary.layers if not layer.called and layer.repeated] == [
        "LayerNorm"
    ] * 4


def test_variable_names_become_paths() -> None:
    summary = parse(one("torchinfo-1.8.0-full-resnet18"), origin="resnet18")
    names = {layer.name: layer.kind for layer in summary.layers}
    assert names["layer2.0.downsample.0"] == "Conv2d"
    assert names["fc"] == "Linear"


def test_frozen_layers_are_told_apart() -> None:
    summary = parse(one("torchinfo-1.8.0-full-frozen"), origin="frozen")
    assert {layer.kind: layer.trainable for layer in summary.layers if layer.params} == {
        "Conv2d": False,
        "GroupNorm": False,
        "Linear": True,
    }


@pytest.mark.parametrize("version", ["0.1.5", "1.5.4", "1.6.6"])
def test_old_kernel_shapes_lose_their_channels(version: str) -> None:
    summary = parse(one(f"torchinfo-{version}-columns-resnet18"), origin="resnet18")
    assert next(layer for layer in summary.layers if layer.kind == "Conv2d").kernel == (7, 7)


def test_the_weights_of_attention_that_old_tools_leave_out_are_added() -> None:
    summary = parse(one("torchinfo-1.6.6-columns-transformer"), origin="transformer")
    attention = next(layer for layer in summary.layers if layer.kind == "MultiheadAttention")
    assert attention.params == 4 * 64 * 65
    assert "params" in attention.derived


def test_weights_that_may_be_tied_are_pointed_out() -> None:
    summary = parse(one("torchinfo-1.8.0-depth20-gpt2"), origin="gpt2")
    assert "may be one weight of 38,597,376 parameters" in " ".join(summary.remarks)


def test_what_needs_nobodys_doing_is_no_warning() -> None:
    assert parse(one("torchinfo-1.8.0-depth20-gpt2"), origin="gpt2").warnings == ()
    assert parse(one("torchinfo-1.6.6-columns-transformer"), origin="transformer").warnings == ()


@pytest.mark.parametrize(
    ("stem", "needle"),
    [
        ("torchsummary-1.5.1-open-gru", "does not count the parameters of GRU"),
        ("torchsummary-1.5.1-open-swin", "windows"),
        ("torchsummary-1.5.1-open-frozen", "frozen"),
        ("print-torch-print-t5", "does not show the parameters of T5LayerNorm"),
        ("print-torch-print-unet", "activations are unknown"),
        ("torchinfo-1.8.0-no-input-bert", "activations are unknown"),
    ],
)
def test_what_a_tool_leaves_out_is_said(stem: str, needle: str) -> None:
    assert needle in " ".join(parse(one(stem), origin=stem).warnings)


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
