"""Custom forwards: which classes are known, how much of a model is not, what is asked for then."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.ground_truth import load_ground_truth
from lab.places import DATA, HANDWRITTEN
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.corrected import custom_forward as room
from slurm_gpumem.estimators.corrected.custom_forward import (
    FILE,
    KnownClasses,
    custom_forward,
    known_classes,
)
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary
from tests.support.measured_texts import texts_in

SHAPE = ((2, 64, 32, 32),)


def text(*rows: Layer) -> ModelSummary:
    return ModelSummary("torchinfo", rows, batch=2)


def block(kind: str, *inside: str, depth: int = 0) -> tuple[Layer, ...]:
    own = Layer(kind, SHAPE, depth=depth, leaf=not inside)
    return (own, *(Layer(name, SHAPE, depth=depth + 1, params=10) for name in inside))


def test_a_librarys_model_has_nothing_unseen() -> None:
    truth = load_ground_truth(DATA / "blind-check")
    keys = {run.summary for run in truth.runs if run.row["source"] != "own"}
    shares = [
        custom_forward(read_summary(truth.texts[key]["torchinfo_full"].rstrip("\n") + "\n")).is_much
        for key in sorted(keys)[::2]
        if "torchinfo_full" in truth.texts[key]
    ]
    assert len(shares) > 50
    assert sum(shares) <= 0.02 * len(shares)


def test_a_hand_written_model_says_which_forward_cannot_be_seen() -> None:
    summary = read_summary(
        texts_in(HANDWRITTEN)["own/w-pairformer@128"]["torchinfo_full"].rstrip("\n") + "\n"
    )
    found = custom_forward(summary)
    assert found.is_much
    assert found.message == "what PairBlock.forward does cannot be seen in a summary; `gpumem trace` can"
    answer = registry.run("corrected", summary, TrainingJob(8), find_gpu("h200"))
    assert f"the margin is large: {found.message}" in answer.warnings
    assert answer.margin.custom_forward == found


def test_nearly_every_hand_written_network_is_recognized_from_any_text() -> None:
    for tool, missed in (("torchinfo_full", 0.05), ("torchinfo", 0.05), ("torchsummary", 0.0)):
        found = [
            bool(custom_forward(read_summary(texts[tool].rstrip("\n") + "\n")).classes)
            for _, texts in sorted(texts_in(HANDWRITTEN).items())[::4]
            if tool in texts
        ]
        assert sum(found) >= (1 - missed) * len(found)


def _flat(*kinds: str) -> ModelSummary:
    """torchsummary's table: children before the class that owns them, and no number of its own."""
    rows = [
        f"{f'{kind}-{number}':>20} {'[-1, 64, 28, 28]':>25} {params:>15}"
        for number, kind, params in (
            (number, kind, "4,096" if "Conv" in kind and "Norm" not in kind else "0")
            for number, kind in enumerate(kinds, 1)
        )
    ]
    rule = "-" * 64
    head = f"{'Layer (type)':>20} {'Output Shape':>25} {'Param #':>15}"
    return read_summary("\n".join([rule, head, "=" * 64, *rows, "=" * 64, "Total params: 4,096", ""]))


def test_without_nesting_one_general_name_is_no_librarys_model() -> None:
    # torchvision's ResNets name no other class; whose model it stands in, the text does not say.
    theirs = custom_forward(
        _flat("Conv2d", "MaxPool2d", "Conv2d", "Bottleneck", "AdaptiveAvgPool2d", "Linear")
    )
    assert (theirs.is_much, theirs.message.split(" does")[0]) == (False, "what model.forward")
    # Who pools without a layer, where the library has one, has a forward of their own.
    assert custom_forward(_flat("Conv2d", "MaxPool2d", "Conv2d", "Bottleneck", "Linear")).is_much
    assert custom_forward(_flat("Conv3d", "BasicBlock", "MaxPool3d", "AdaptiveAvgPool3d", "Linear")).is_much
    assert custom_forward(_flat("Conv2d", "ReLU", "ConvBN")).is_much
    # Weights that are computed from others are torch's own, in any model.
    assert custom_forward(_flat("_WeightNorm", "ParametrizedConv1d", "ReLU")).is_much


def test_without_nesting_a_class_must_end_with_a_layer_that_the_known_one_has() -> None:
    theirs = ("Conv2d", "Attention", "Conv2d", "Mlp", "Block")
    assert not custom_forward(_flat(*theirs)).is_much
    mine = ("Conv2d", "Attention", "Conv2d", "InvertedResidual", "Identity", "Block")
    assert custom_forward(_flat(*mine)).classes == ("Block",)


def test_without_nesting_a_class_whose_layers_do_not_fit_its_rule_is_unseen() -> None:
    halo = (
        "Conv2d",
        "Conv2d",
        "PosEmbedRel",
        "Identity",
        "HaloAttn",
        "Conv2d",
        "ConvNormAct",
        "SelfAttnBlock",
    )
    assert custom_forward(_flat(*halo)).classes == ("HaloAttn",)


def test_what_stands_in_a_model_of_transformers_is_the_librarys() -> None:
    inner = block("AriaExperts", "AriaGroupedExpertsGemm", depth=2)  # neither list nor layers show these
    model = Layer("AriaTextModel", SHAPE, depth=1, leaf=False)
    assert not custom_forward(text(Layer("AriaTextForCausalLM", SHAPE, leaf=False), model, *inner)).classes
    assert custom_forward(text(Layer("MyForCausalLM", SHAPE, leaf=False), model, *inner)).classes
    # Somebody's own layer in it stays somebody's own.
    mine = block("MyAdapter", "Linear", depth=2)
    found = custom_forward(text(Layer("AriaTextForCausalLM", SHAPE, leaf=False), model, *inner, *mine))
    assert found.classes == ("MyAdapter",)


def test_an_own_class_under_a_librarys_name_counts_as_own_unless_its_layers_fit() -> None:
    theirs = block("BasicBlock", "Conv2d", "BatchNorm2d", "ReLU")
    assert not custom_forward(text(*theirs)).classes
    mine = block("BasicBlock", "LSTM", "Embedding", "Conv3d")
    assert custom_forward(text(*mine)).classes == ("BasicBlock",)


def test_a_wrapper_around_a_known_model_leaves_little_unseen() -> None:
    rows = [Layer("MyNet", SHAPE, leaf=False)]
    for _ in range(20):
        rows += block("BasicBlock", "Conv2d", "BatchNorm2d", "ReLU", depth=2)
    rows.insert(1, Layer("Sequential", SHAPE, depth=1, leaf=False))
    rows.append(Layer("Linear", ((2, 10),), depth=1))
    found = custom_forward(text(*rows))
    assert found.classes == ("MyNet",)
    assert found.share < 0.1
    assert not found.is_much


def test_a_text_of_nodes_says_that_its_batch_may_be_another() -> None:
    # Two graphs of 256 nodes each: nothing in the text shows the 2.
    summary = read_summary(texts_in(HANDWRITTEN)["own/w-gat@256"]["torchinfo_deep"].rstrip("\n") + "\n")
    few, many = (registry.run("corrected", summary, TrainingJob(b), find_gpu("h200")) for b in (64, 1024))
    assert [said for said in few.warnings if "512 leads every shape" in said]
    assert not [said for said in many.warnings if "leads every shape" in said]


def test_lists_belong_to_the_class_that_owns_them() -> None:
    rows = [Layer("MyNet", SHAPE, leaf=False), Layer("ModuleList", (), depth=1, leaf=False)]
    rows += [Layer("Linear", SHAPE, depth=2) for _ in range(3)]
    assert custom_forward(text(*rows)).share == 1.0


@pytest.mark.parametrize("content", [b"", b"something else\n"], ids=["empty", "other"])
def test_a_damaged_list_of_classes_is_named(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known-classes.txt"
    path.write_bytes(content)
    monkeypatch.setattr(room, "data_file", lambda *parts: path)
    known_classes.cache_clear()
    with pytest.raises(ConfigError, match=r"known-classes\.txt"):
        known_classes()
    known_classes.cache_clear()


def test_every_known_class_is_found_and_no_other() -> None:
    first, *lines = data_path("models", FILE).read_text().splitlines()
    assert lines == sorted(lines)
    known = KnownClasses(data_path("models", FILE).read_bytes())
    for line in lines:
        name, marks, *below = line.split(" ")
        assert known[name] == (marks, frozenset(below))
    for name in ("", "A", "Conv", "Conv2", "zzz", first, "ResNe", "ResNetX", lines[0][:-1] + "?"):
        assert known[name] is None, name
