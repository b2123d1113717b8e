"""An input that is stated for a text without shapes: what follows from it, and what is refused."""

from __future__ import annotations

import pytest

from slurm_gpumem.errors import SummaryError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.stated_input import with_input
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

PRINTED = """\
MyNet(
  (stem): Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3))
  (norm): GroupNorm(8, 64, eps=1e-05, affine=True)
  (act): ReLU()
  (block): MyBlock(
    (conv1): Conv2d(64, 128, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
    (shortcut): Sequential(
      (0): Conv2d(64, 128, kernel_size=(1, 1), stride=(2, 2))
    )
  )
  (pool): AdaptiveAvgPool2d(output_size=(1, 1))
  (head): Linear(in_features=128, out_features=10, bias=True)
)
"""
ENCODER = """\
MyEncoder(
  (words): Embedding(1000, 64)
  (places): Embedding(512, 64)
  (qkv): Linear(in_features=64, out_features=192, bias=True)
  (out): Linear(in_features=64, out_features=64, bias=True)
  (up): Linear(in_features=64, out_features=256, bias=True)
  (down): Linear(in_features=256, out_features=64, bias=True)
)
"""
FLAT = """\
Small(
  (conv): Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
  (pool): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
  (head): Linear(in_features=1568, out_features=10, bias=True)
)
"""
JOINED = PRINTED.replace("Linear(in_features=128", "Linear(in_features=192")
TABLE = """\
==========================================================================================
Layer (type:depth-idx)                   Input Shape               Output Shape              Param #
==========================================================================================
Net                                      [2, 3, 32, 32]            [2, 10]                   --
├─Conv2d: 1-1                            [2, 3, 32, 32]            [2, 8, 32, 32]            224
├─Linear: 1-2                            [2, 8192]                 [2, 10]                   81,930
==========================================================================================
Total params: 82,154
Trainable params: 82,154
Non-trainable params: 0
==========================================================================================
"""
WITHOUT_INPUT = """\
=================================================================
Layer (type:depth-idx)                   Param #
=================================================================
Net                                      --
├─Conv2d: 1-1                            224
├─Linear: 1-2                            81,930
=================================================================
Total params: 82,154
Trainable params: 82,154
Non-trainable params: 0
=================================================================
"""


def outputs(summary: ModelSummary) -> dict[str, tuple[int, ...]]:
    return {layer.name: layer.outputs[0] for layer in summary.layers if layer.leaf}


def test_the_input_is_followed_through_the_printed_layers() -> None:
    found = with_input(read_summary(PRINTED), "3x64x64")
    assert found.has_shapes
    assert outputs(found) == {
        "stem": (-1, 64, 32, 32),
        "norm": (-1, 64, 32, 32),
        "act": (-1, 64, 32, 32),
        "block.conv1": (-1, 128, 16, 16),
        "block.shortcut.0": (-1, 128, 16, 16),
        "pool": (-1, 128, 1, 1),
        "head": (-1, 10),
    }


def test_tokens_keep_their_number_and_a_flattened_image_is_one_row() -> None:
    tokens = outputs(with_input(read_summary(ENCODER), "input_ids=100:int64"))
    assert {shape[:2] for shape in tokens.values()} == {(-1, 100)}
    assert tokens["qkv"][-1] == 192
    assert outputs(with_input(read_summary(FLAT), "1,28,28"))["head"] == (-1, 10)


def test_a_larger_input_needs_more_and_the_answer_says_where_the_shapes_are_from() -> None:
    gpu, job = find_gpu("h200"), TrainingJob(64)
    peaks = []
    for size in (64, 224, 512):
        summary = with_input(read_summary(PRINTED), f"3x{size}x{size}")
        found = registry.run("auto", summary, job, gpu)
        registry.refuse_guess(summary, "auto")
        peaks.append(found.peak_mib)
        assert any(f"from the input 3x{size}x{size}" in said for said in found.warnings)
        assert not any("no shapes: activations are unknown" in said for said in found.warnings)
    assert peaks[0] < peaks[1] < peaks[2]


@pytest.mark.parametrize(
    ("text", "stated", "reason"),
    [
        (PRINTED, "1x64x64", r"stem \(line 2, Conv2d\) takes 3 channels, and gets 1"),
        (JOINED, "3x64x64", "head .* takes 192 features"),
        (
            ENCODER.replace("in_features=256", "in_features=300"),
            "100",
            "down .* takes 300 features, and gets 256",
        ),
        (WITHOUT_INPUT, "3x32x32", "does not show what its layers make of an input"),
    ],
    ids=["channels", "joined", "features", "torchinfo without an input"],
)
def test_what_does_not_follow_is_refused_with_its_layer(text: str, stated: str, reason: str) -> None:
    with pytest.raises(SummaryError, match=reason):
        with_input(read_summary(text), stated)


def test_a_classifier_takes_the_mean_of_an_image_and_no_layer_before_it() -> None:
    lines = [line for line in PRINTED.splitlines(keepends=True) if "(pool)" not in line]
    assert outputs(with_input(read_summary("".join(lines)), "3x64x64"))["head"] == (-1, 10)
    lines.insert(-2, "  (mix): Linear(in_features=128, out_features=128, bias=True)\n")
    with pytest.raises(SummaryError, match=r"mix .* takes a mean over 256 positions, or each of them"):
        with_input(read_summary("".join(lines)), "3x64x64")


def test_a_text_with_shapes_is_compared_with_what_is_stated() -> None:
    summary = read_summary(TABLE)
    assert with_input(summary, "3x32x32") == summary
    with pytest.raises(SummaryError, match=r"--input 3x64x64: the text was made with 3x32x32"):
        with_input(summary, "3x64x64")


def test_nothing_stated_changes_nothing() -> None:
    summary = read_summary(PRINTED)
    assert with_input(summary, None) is summary
    assert with_input(summary, "") is summary


@pytest.mark.parametrize("stated", ["3xyx4", "0x3", "B,B,3", "3..4", "-3"])
def test_what_is_no_shape_is_refused(stated: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        with_input(read_summary(PRINTED), stated)


def test_kept_estimates_of_two_inputs_are_two(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "net.txt"
    path.write_text(PRINTED)
    digests = {with_input(read_summary(path), stated).digest for stated in (None, "3x64x64", "3x128x128")}
    assert len(digests) == 3
