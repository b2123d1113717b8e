"""What a layer takes where the text does not show it: the batch, concatenations, long kernels, windows."""

from __future__ import annotations

from typing import Tuple

import pytest

from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary, Shape
from tests.support.kept_steps import simulated

RULE = "=" * 90 + "\n"


def summary_of(rows: str, input_mb: str = "", pass_mb: str = "1.00") -> ModelSummary:
    """A text of torchinfo without input shapes."""
    passed = f"Forward/backward pass size (MB): {pass_mb}"
    sizes = f"Input size (MB): {input_mb}\n{passed}\n{RULE}" if input_mb else ""
    head = f"{RULE}Layer (type:depth-idx)                   Output Shape              Param #\n{RULE}"
    last = [line.split()[-1].replace(",", "") for line in rows.splitlines()]
    total = sum(int(word) for word in last if word.isdecimal())
    return read_summary(f"{head}{rows}{RULE}Total params: {total:,}\n{RULE}{sizes}")


def walk_of(rows: str, input_mb: str = "", pass_mb: str = "1.00") -> Walk:
    return simulated(summary_of(rows, input_mb, pass_mb), TrainingJob(32))[0]


def input_of(rows: str, last: str) -> Shape:
    row = next(layer for layer in reversed(summary_of(rows).layers) if layer.kind == last)
    return row.inputs[0]


def first_of(out: str, params: str) -> str:
    return (
        f"Net                                      [2, 10]                   --\n"
        f"├─Conv2d: 1-1                            {out:<26}{params}\n"
        f"├─Linear: 1-2                            [2, 10]                   5,130\n"
    )


@pytest.mark.parametrize(
    ("out", "params", "input_mb", "shape"),
    [
        # Atari's screens: kernels of 8, stride 4, no padding; another small input beside them.
        ("[60, 32, 20, 20]", "8,224", "6.78", (60, 4, 84, 84)),
        # Two images of three channels together.
        ("[2, 64, 160, 160]", "18,816", "4.92", (2, 6, 320, 320)),
        # A stride of one, which the kernel alone does not tell from two.
        ("[2, 64, 224, 224]", "1,792", "1.20", (2, 3, 224, 224)),
        ("[2, 64, 112, 112]", "9,408", "1.20", (2, 3, 224, 224)),
        # Patches.
        ("[2, 768, 14, 14]", "590,592", "1.20", (2, 3, 224, 224)),
    ],
)
def test_the_stated_input_size_tells_the_batch(
    out: str, params: str, input_mb: str, shape: Tuple[int, ...]
) -> None:
    assert walk_of(first_of(out, params), input_mb).sent == shape


def test_an_input_size_that_no_stride_explains_is_left() -> None:
    """Two images are twice the size of one: a stride of 1.4 times another is none."""
    rows = first_of("[2, 64, 112, 112]", "9,408")
    assert walk_of(rows, "2.41").sent == walk_of(rows).sent == (2, 3, 224, 224)


DECODER = """\
Net                                      [2, 2, 80, 80]            --
├─Conv2d: 1-1                            [2, 128, 80, 80]          3,584
├─Conv2d: 1-2                            [2, 256, 40, 40]          295,168
├─Conv2d: 1-3                            [2, 512, 20, 20]          1,180,160
├─ConvTranspose2d: 1-4                   [2, 128, 40, 40]          {alone}
├─Conv2d: 1-5                            [2, 2, 40, 40]            {flow}
├─ConvTranspose2d: 1-6                   [2, 64, 80, 80]           {joined}
"""


def test_a_transposed_convolution_takes_outputs_of_one_smaller_size_together() -> None:
    """It was taken for one of 1 x 1 over sixteen times the channels, of the size that it makes."""
    # Kernels of 4 x 4; the flow from 384 channels, then that flow beside them.
    rows = DECODER.format(alone="1,048,704", flow="6,914", joined="395,328")
    shapes = [layer.inputs[0] for layer in summary_of(rows).layers if layer.kind == "ConvTranspose2d"]
    assert shapes == [(2, 512, 20, 20), (2, 386, 40, 40)]


def test_a_transposed_convolution_of_each_channel_by_itself() -> None:
    rows = """\
Net                                      [2, 64, 40, 40]           --
├─Conv2d: 1-1                            [2, 64, 20, 20]           1,792
├─ConvTranspose2d: 1-2                   [2, 64, 40, 40]           1,024
"""
    assert input_of(rows, "ConvTranspose2d") == (2, 64, 20, 20)


def over_time(length: int, params: str) -> str:
    return (
        f"Net                                      [2, 10]                   --\n"
        f"├─Conv1d: 1-1                            [2, 32, {length}]              1,024\n"
        f"├─Conv1d: 1-2                            [2, 32, {length}]              {params}\n"
        f"├─Linear: 1-3                            [2, 10]                   330\n"
    )


@pytest.mark.parametrize("taps", [41, 20, 10])
def test_kernels_over_time_have_any_length(taps: int) -> None:
    """InceptionTime's were taken for one step over forty times the channels."""
    assert input_of(over_time(512, f"{32 * 32 * taps:,}"), "Conv1d") == (2, 32, 512)


def test_a_kernel_is_shorter_than_its_sequence() -> None:
    """Products of all pairs of features, which a convolution of one step takes."""
    assert input_of(over_time(12, f"{32 * (32 * 20 + 1):,}"), "Conv1d") in ((2, 640, 12), (2, 641, 12))


HEADS = """\
Net                                      [2, 512, 256]             --
├─Linear: 1-1                            [2, 512, 64]              16,448
├─LinearAttentionHead: 1-2               [2, 512, 64]              131,328
├─Linear: 1-3                            [2, 512, 256]             16,640
"""


def test_no_window_has_more_tokens_than_a_sample() -> None:
    """Linformer's other projections were taken for a table of distances: scores for 28,000 tokens."""
    whole = 32 * 512 * 512 * 4
    assert max(walk_of(HEADS, "1.05", "3.15").tape.sizes) <= 2 * whole
