"""What torchinfo's tables show and hide; texts/ holds tables of small models by torchinfo 1.8."""

from __future__ import annotations

from pathlib import Path

from slurm_gpumem.summaries.reader import read_summary

TEXTS = Path(__file__).parent / "texts"


def test_an_input_and_an_output_of_one_sample_make_the_batch_one() -> None:
    alone = (TEXTS / "mesh-folded-batch.txt").read_text().replace("[2, 1000, 3]", "[1, 1000, 3]")
    assert read_summary(alone).batch == 1


CUT = """\
==========================================================================================
Layer (type:depth-idx)                   Output Shape              Param #
==========================================================================================
Net                                      [2, 8, 8, 8]              --
├─ConvNormAct: 1-1                       [2, 8, 8, 8]              --
│    └─Conv2d: 2-1                       [2, 8, 8, 8]              216
├─Stage: 1-2                             [2, 8, 8, 8]              --
│    └─ConvNormAct: 2-2                  [2, 8, 8, 8]              592
│    └─{}: 2-3                  [2, 8, 8, 8]              592
==========================================================================================
Total params: 1,400
Trainable params: 1,400
Non-trainable params: 0
==========================================================================================
Input size (MB): 0.00
Forward/backward pass size (MB): 0.02
Params size (MB): 0.01
Estimated Total Size (MB): 0.03
==========================================================================================
"""


def test_a_class_shown_with_layers_elsewhere_hides_them_at_the_depth_limit() -> None:
    # Its output is as large as its convolution's, and torchinfo does not count a norm with its activation:
    # the totals are explained although layers are missing.
    cut = read_summary(CUT.format("ConvNormAct"))
    assert [layer.kind for layer in cut.hidden] == ["ConvNormAct"] * 2
    assert any("depth=20" in warning for warning in cut.warnings)


def test_a_norm_activation_and_convolution_in_one_are_a_block() -> None:
    cut = read_summary(CUT.format("BnActConv2d").replace("0.02", "0.09"))
    assert "BnActConv2d" in [layer.kind for layer in cut.hidden]


def test_a_decoder_of_volumes_takes_what_the_encoder_made_long_before() -> None:
    rule = "=" * 80
    made = [f"├─Conv3d: 1-{n + 2:<14} [2, {100 + n}, 16, 16, 16]      1,000" for n in range(9)]
    rows = ["Net                          [2, 64, 64, 64, 64]       --"]
    rows += ["├─Conv3d: 1-1                [2, 160, 32, 32, 32]      4,480", *made]
    rows += ["├─ConvTranspose3d: 1-11      [2, 64, 64, 64, 64]       81,984"]  # 160 · 64 · 2³ + 64
    head = "Layer (type:depth-idx)       Output Shape              Param #"
    summary = read_summary("\n".join([rule, head, rule, *rows, rule, ""]))
    assert summary.layers[-1].inputs == ((2, 160, 32, 32, 32),)
