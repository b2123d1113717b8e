"""What `forward` of known classes keeps between its layers: sizes as traces of the same classes have them."""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counted

import pytest

from slurm_gpumem.estimators.corrected.estimator import strange_layers
from slurm_gpumem.estimators.structural.layers.class_names import drops, named
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from tests.support.kept_steps import simulated

RULE = "=" * 100 + "\n"
BATCH = 32
FLOAT = 4


def _walk(rows: str, precision: str = "fp32") -> Walk:
    columns = "Input Shape               Output Shape             "
    text = f"{RULE}Layer (type:depth-idx)  {columns}  Param #\n{RULE}{rows}{RULE}"
    job = TrainingJob(BATCH, precision=precision)
    return simulated(read_summary(text), job)[0]


def _kept(rows: str, precision: str = "fp32") -> Counted[int]:
    """How many tensors of each size, in numbers of fp32 a sample, the forward pass keeps."""
    tape = _walk(rows, precision).tape
    stores = {store for op in tape.ops for store in (*op.saved, *op.kept)}
    return Counter(tape.sizes[store] // (BATCH * FLOAT) for store in stores)


GATED = """\
MambaOut                     [2, 14, 14, 64]        [2, 14, 14, 64]        --
├─{}: 1-1        [2, 14, 14, 64]        [2, 14, 14, 64]        --
│    └─LayerNorm: 2-1        [2, 14, 14, 64]        [2, 14, 14, 64]        128
│    └─Linear: 2-2           [2, 14, 14, 64]        [2, 14, 14, 340]       22,100
│    └─Conv2d: 2-3           [2, 64, 14, 14]        [2, 64, 14, 14]        3,200
│    └─GELU: 2-4             [2, 14, 14, 170]       [2, 14, 14, 170]       --
│    └─Linear: 2-5           [2, 14, 14, 170]       [2, 14, 14, 64]        10,944
"""


def test_mambaouts_block_keeps_the_gate_what_it_scales_and_the_product() -> None:
    kept = _kept(GATED.format("GatedConvBlock"))
    assert kept[196 * 340] == 1
    assert kept[196 * 170] == 3
    # A block of somebody else's with that name and other layers is walked layer by layer.
    assert _kept(GATED.format("GatedConvBlock").replace("Conv2d", "Linear")) != kept


def test_mambaout_is_no_state_space_model() -> None:
    columns = "Input Shape               Output Shape             "
    text = f"{RULE}Layer (type:depth-idx)  {columns}  Param #\n{RULE}{GATED.format('GatedConvBlock')}{RULE}"
    assert strange_layers(read_summary(text)) == ""
    assert strange_layers(read_summary(text.replace("MambaOut", "MambaMix")))


def test_the_first_of_two_parallel_wide_layers_is_activated_and_scales_the_other() -> None:
    rows = """\
StarNet                      [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Block: 1-1                 [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    └─Conv2d: 2-1           [2, 32, 14, 14]        [2, 128, 14, 14]       4,224
│    └─Conv2d: 2-2           [2, 32, 14, 14]        [2, 128, 14, 14]       4,224
│    └─ReLU6: 2-3            [2, 128, 14, 14]       [2, 128, 14, 14]       --
│    └─Conv2d: 2-4           [2, 128, 14, 14]       [2, 32, 14, 14]        4,128
"""
    # Both results, the activated one and their product.
    assert _kept(rows)[128 * 196] == 4


def test_two_results_as_wide_as_their_source_are_added_before_an_activation() -> None:
    rows = """\
Net                          [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Branches: 1-1              [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    └─Conv2d: 2-1           [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
│    └─Conv2d: 2-2           [2, 32, 14, 14]        [2, 32, 14, 14]        1,056
│    └─ReLU: 2-3             [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    └─Conv2d: 2-4           [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
"""
    assert all(len(op.saved) < 2 for op in _walk(rows).tape.ops if op.label == "ReLU")


def test_repvits_modules_are_no_branches_and_its_last_norm_takes_their_sum() -> None:
    assert not named("branches", "RepVit")
    assert not named("branches", "RepVitBlock")
    rows = """\
RepVit                       [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─RepVggDw: 1-1              [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    └─ConvNorm: 2-1         [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    │    └─Conv2d: 3-1      [2, 32, 14, 14]        [2, 32, 14, 14]        288
│    │    └─BatchNorm2d: 3-2 [2, 32, 14, 14]        [2, 32, 14, 14]        64
│    └─Conv2d: 2-2           [2, 32, 14, 14]        [2, 32, 14, 14]        64
{}├─GELU: 1-2                  [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Conv2d: 1-3                [2, 32, 14, 14]        [2, 32, 14, 14]        1,056
"""
    norm = "│    └─BatchNorm2d: 2-3      [2, 32, 14, 14]        [2, 32, 14, 14]        64\n"
    assert _kept(rows.format(norm))[32 * 196] == _kept(rows.format(""))[32 * 196] + 1


def test_an_evonorm_keeps_its_gate_the_copied_deviation_and_each_quotient() -> None:
    rows = """\
Net                          [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Conv2d: 1-1                [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
├─{}          [2, 32, 14, 14]        [2, 32, 14, 14]        {}
├─GELU: 1-3                  [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Conv2d: 1-4                [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
"""
    without, plain, activated = (
        _kept(rows.format(kind, params))[32 * 196]
        for kind, params in (("Identity: 1-2", "--"), ("EvoNorm2dS0a: 1-2", 64), ("EvoNorm2dS0a: 1-2", 96))
    )
    # The deviation, what is divided by it and the result, which the next layer takes; gate and gated input.
    assert plain - without == 3
    assert activated - plain == 2


def test_an_rms_norm_over_channels_is_written_out() -> None:
    rows = """\
Net                          [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Conv2d: 1-1                [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
├─{}          [2, 32, 14, 14]        [2, 32, 14, 14]        {}
│    └─GELU: 2-1             [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─Conv2d: 1-3                [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
"""
    written = _kept(rows.format("RmsNormAct2d: 1-2", 32))
    # The scaled input, and what the weight makes of it.
    assert written[32 * 196] - _kept(rows.format("Sequential: 1-2", "--"))[32 * 196] == 2


def test_attention_within_blocks_of_tokens_keeps_its_matrix_and_three_copies() -> None:
    rows = """\
Net                          [2, 4, 49, 64]         [2, 4, 49, 64]         --
├─{}: 1-1             [2, 4, 49, 64]         [2, 4, 49, 64]         --
│    └─Attention: 2-1        [2, 4, 49, 64]         [2, 4, 49, 64]         --
│    │    └─Linear: 3-1      [2, 4, 49, 64]         [2, 4, 49, 192]        12,480
│    │    └─Linear: 3-2      [2, 4, 49, 64]         [2, 4, 49, 64]         4,160
"""
    nest, other = _kept(rows.format("NestLevel")), _kept(rows.format("ViTLevels"))
    matrix = 4 * 49 * (64 // 32) * 49
    assert nest[matrix] == 1
    assert not other[matrix]
    # Queries, keys, values, the result; the fused projection itself goes.
    assert nest[196 * 64] >= 4
    assert not nest[196 * 192]
    assert other[196 * 192]


HIERA = """\
Hiera                        [2, 256, 96]           [2, 256, 96]           --
├─MaskUnitAttention: 1-1     [2, 256, 96]           [2, 256, 96]           --
│    └─Linear: 2-1           [2, 256, 96]           [2, 256, 288]          27,936
│    └─Linear: 2-2           [2, 256, 96]           [2, 256, 96]           9,312
"""


def test_hieras_first_stages_attend_within_windows_of_64_tokens() -> None:
    assert _kept(HIERA)[256 * 64] == 1
    later = """\
├─MaskUnitAttention: 1-2     [2, 16, 384]           [2, 16, 384]           --
│    └─Linear: 2-3           [2, 16, 384]           [2, 16, 1152]          443,520
│    └─Linear: 2-4           [2, 16, 384]           [2, 16, 384]           147,840
"""
    # All tokens of a late stage: a fused kernel, whose fused projection is kept.
    assert _kept(HIERA + later)[16 * 1152] == 1


def test_a_halo_copies_a_larger_window_for_each_block() -> None:
    rows = """\
Net                          [2, 64, 16, 16]        [2, 64, 16, 16]        --
├─HaloAttn: 1-1              [2, 64, 16, 16]        [2, 64, 16, 16]        --
│    └─Conv2d: 2-1           [2, 64, 16, 16]        [2, 64, 16, 16]        4,096
│    └─Conv2d: 2-2           [2, 64, 16, 16]        [2, 128, 16, 16]       8,192
│    └─PosEmbedRel: 2-3      [8, 4, 64, 16]         [8, 4, 64, 144]        736
"""
    kept = _kept(rows)
    assert kept[4 * 144 * 128] == 1
    assert kept[4 * 4 * 64 * 144] == 1


LEVIT = """\
Levit                        [2, 196, 64]           [2, 196, 64]           --
├─LevitStage: 1-1            [2, 196, 64]           [2, 196, 64]           --
│    └─Attention: 2-1        [2, 196, 64]           [2, 196, 64]           784
│    │    └─LinearNorm: 3-1  [2, 196, 64]           [2, 196, 256]          --
│    │    │    └─Linear: 4-1 [2, 196, 64]           [2, 196, 256]          16,384
│    │    │    └─BatchNorm1d: 4-2 [392, 256]        [392, 256]             512
│    │    └─Sequential: 3-2  [2, 196, 128]          [2, 196, 64]           --
│    │    │    └─Hardswish: 4-3 [2, 196, 128]       [2, 196, 128]          --
│    │    │    └─Linear: 4-4 [2, 196, 128]          [2, 196, 64]           8,192
"""


@pytest.mark.parametrize(("precision", "matrices"), [("fp32", 1), ("amp-bf16", 1.5)])
def test_levits_attention_is_written_out(precision: str, matrices: float) -> None:
    kept = _kept(LEVIT, precision)
    matrix = 4 * 196 * 196
    assert kept[matrix] + kept[matrix // 2] / 2 == matrices


def test_attention_between_channels_compares_by_angle() -> None:
    rows = """\
Xcit                         [2, 196, 64]           [2, 196, 64]           --
├─XCA: 1-1                   [2, 196, 64]           [2, 196, 64]           4
│    └─Linear: 2-1           [2, 196, 64]           [2, 196, 192]          12,480
│    └─Dropout: 2-2          [2, 4, 16, 16]         [2, 4, 16, 16]         --
│    └─Linear: 2-3           [2, 196, 64]           [2, 196, 64]           4,160
"""
    kept = _kept(rows)
    # The projection for its lengths, unit queries and keys, values, the result; input, loss.
    assert kept[196 * 192] == 1
    assert kept[196 * 64] >= 5
    assert kept[4 * 16 * 16] == 2


def test_swins_second_version_keeps_scores_and_one_softmax() -> None:
    rows = """\
SwinTransformerV2            [128, 64, 96]          [128, 64, 96]          --
├─WindowAttention: 1-1       [128, 64, 96]          [128, 64, 96]          27,843
│    └─Sequential: 2-1       [1, 15, 15, 2]         [1, 15, 15, 3]         --
│    │    └─Linear: 3-1      [1, 15, 15, 2]         [1, 15, 15, 512]       1,536
│    │    └─ReLU: 3-2        [1, 15, 15, 512]       [1, 15, 15, 512]       --
│    │    └─Linear: 3-3      [1, 15, 15, 512]       [1, 15, 15, 3]         1,536
│    └─Softmax: 2-2          [128, 3, 64, 64]       [128, 3, 64, 64]       --
│    └─Linear: 2-3           [128, 64, 96]          [128, 64, 96]          9,312
"""
    tape = _walk(rows).tape
    stores = {store for op in tape.ops for store in (*op.saved, *op.kept)}
    sizes = Counter(tape.sizes[store] for store in stores)
    tokens = max(size for size in sizes if sizes[size] >= 4)  # queries, keys, values, result
    assert sizes[tokens * 3 * 64 // 96] == 2


def test_selective_kernels_are_stacked() -> None:
    rows = """\
Net                          [2, 32, 14, 14]        [2, 32, 14, 14]        --
├─SelectiveKernel: 1-1       [2, 32, 14, 14]        [2, 32, 14, 14]        --
│    └─ModuleList: 2-1       --                     --                     --
│    │    └─Conv2d: 3-1      [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
│    │    └─Conv2d: 3-2      [2, 32, 14, 14]        [2, 32, 14, 14]        9,248
│    └─SelectiveKernelAttn: 2-2 [2, 2, 32, 14, 14]  [2, 2, 32, 1, 1]       --
│    │    └─Conv2d: 3-3      [2, 32, 1, 1]          [2, 32, 1, 1]          1,024
│    │    └─Conv2d: 3-4      [2, 32, 1, 1]          [2, 64, 1, 1]          2,048
"""
    assert _kept(rows)[2 * 32 * 196] == 1


def test_segformers_head_resizes_and_joins_all_stages_in_fp32() -> None:
    rows = """\
SegformerForSemanticSegmentation [2, 256, 32]       [2, 21, 16, 16]        --
├─SegformerDecodeHead: 1-1   [2, 256, 32]           [2, 21, 16, 16]        --
│    └─ModuleList: 2-1       --                     --                     --
│    │    └─SegformerMLP: 3-1 [2, 256, 32]          [2, 256, 64]           --
│    │    │    └─Linear: 4-1 [2, 256, 32]           [2, 256, 64]           2,112
│    │    └─SegformerMLP: 3-2 [2, 64, 32]           [2, 64, 64]            --
│    │    │    └─Linear: 4-2 [2, 64, 32]            [2, 64, 64]            2,112
│    └─Conv2d: 2-2           [2, 128, 16, 16]       [2, 64, 16, 16]        8,192
│    └─Dropout: 2-3          [2, 64, 16, 16]        [2, 64, 16, 16]        --
│    └─Conv2d: 2-4           [2, 64, 16, 16]        [2, 21, 16, 16]        1,365
"""
    tape = _walk(rows, "amp-bf16").tape
    made = Counter(tape.sizes[op.out.store] // (BATCH * FLOAT) for op in tape.ops)
    assert made[64 * 256] >= 2
    assert made[128 * 256] == 1
    masks = [tape.sizes[store] for op in tape.ops if op.label == "Dropout" for store in op.kept]
    assert masks == [BATCH * 64 * 256]


def test_mamba_without_its_kernels_keeps_every_steps_state() -> None:
    rows = """\
MambaForCausalLM             [2, 64, 128]           [2, 64, 128]           --
├─MambaMixer: 1-1            [2, 64, 128]           [2, 64, 128]           8,192
│    └─Linear: 2-1           [2, 64, 128]           [2, 64, 512]           65,536
│    └─Linear: 2-2           [2, 64, 256]           [2, 64, 40]            10,240
│    └─Linear: 2-3           [2, 64, 256]           [2, 64, 128]           32,768
"""
    assert _kept(rows)[64 * 256 * 16] == 3
    assert any("mamba_ssm" in said for said in _walk(rows).assumptions)


def test_timms_classes_drop_nothing_by_default() -> None:
    assert not drops(["Xcit", "ModuleList", "XCABlock", "XCA"])
    assert drops(["Net", "Encoder", "Layer"])
