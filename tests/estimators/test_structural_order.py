"""Temporary memory and order of a rebuilt step: what decides how much stays reserved."""

from __future__ import annotations

from typing import List, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import Replay
from slurm_gpumem.estimators.structural.layers.convolutions import (
    convolution_bytes,
    convolution_of,
    sum_bytes,
)
from slurm_gpumem.estimators.structural.stream import Stream
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.estimators.workspaces.convolutions import workspace_bytes
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.trace_types import Convolution
from slurm_gpumem.units import MIB
from tests.support.kept_steps import simulated

RULE = "=" * 100 + "\n"
BATCH = 32
H200 = find_gpu("h200")


def _step(rows: str, precision: str = "fp32", batch: int = BATCH) -> Tuple[Walk, Replay]:
    columns = "Input Shape            Output Shape           Param #"
    text = f"{RULE}Layer (type:depth-idx)  {columns}\n{RULE}{rows}{RULE}"
    return simulated(read_summary(text), TrainingJob(batch, precision=precision))


def _sizes(walk: Walk) -> List[int]:
    return [size for _, size in Stream(walk.tape).backward if size != FREE]


LINEAR = """\
Net                          [2, 1024]              [2, 1024]              --
├─Linear: 1-1                [2, 1024]              [2, 1024]              {}
├─ReLU: 1-2                  [2, 1024]              [2, 1024]              --
├─Linear: 1-3                [2, 1024]              [2, 1024]              {}
"""


def test_a_bias_does_not_make_its_weight_too_large_for_what_it_filled() -> None:
    without, _ = _step(LINEAR.format("1,048,576", "1,048,576"))
    with_bias, _ = _step(LINEAR.format("1,049,600", "1,049,600"))
    assert without.tape.params == [4 * MIB, 4 * MIB]
    # Both biases are small pieces, kept as one sum.
    assert with_bias.tape.params == [4 * MIB, 4 * MIB, 2 * 4096]


def test_half_precision_copies_are_of_weights_without_their_biases() -> None:
    walk, _ = _step(LINEAR.format("1,049,600", "1,049,600"), "amp-bf16")
    assert [walk.tape.sizes[store] for store in walk.tape.cached] == [2 * MIB, 2 * MIB]


TOKENS = """\
Net                          [2, 785, 768]          [2, 785, 3072]         --
├─Linear: 1-1                [2, 785, 768]          [2, 785, 3072]         {}
"""


def test_the_gradient_of_a_bias_is_summed_through_a_buffer() -> None:
    buffer = sum_bytes(7 * 785, 3072)
    # As recorded on an H200 for this layer of a ViT-B/8 at batch 7.
    assert round(buffer / MIB) == 129
    with_bias, _ = _step(TOKENS.format("2,362,368"), batch=7)
    without, _ = _step(TOKENS.format("2,359,296"), batch=7)
    assert buffer in _sizes(with_bias)
    assert buffer not in _sizes(without)


CONVOLUTION = """\
Net                          [2, 16, 64, 64]        [2, 48, 32, 32]        --
├─Conv2d: 1-1                [2, 16, 64, 64]        [2, 24, 64, 64]        3,480
├─Conv2d: 1-2                [2, 24, 64, 64]        [2, 48, 32, 32]        10,416
"""


def test_workspaces_are_the_measured_ones_of_the_convolution_that_the_shapes_imply() -> None:
    walk, _ = _step(CONVOLUTION)
    told = Convolution("forward", "fp32", (), 24, 48, (64, 64), (32, 32), (3, 3), (2, 2), (1, 1), (1, 1))
    assert told == convolution_of(
        (2, 24, 64, 64), (2, 48, 32, 32), (3, 3), 1, transposed=False, dtype="fp32", last=False
    )
    forward, of_input, of_weight = convolution_bytes(told, BATCH)
    calls = [told._replace(call=name, batch=(BATCH,)) for name in ("input", "weight")]
    assert [of_input, of_weight] == [workspace_bytes(call, BATCH) for call in calls]
    second = [op for op in walk.tape.ops if op.passing][1]
    assert second.work == ((forward,) if forward else ())
    assert second.passing == (of_input, of_weight)


def test_small_weights_need_their_workspace_too() -> None:
    walk, _ = _step(CONVOLUTION)
    # The first convolution's parameters are among the small pieces, and its input has no gradient.
    workspace = walk.tape.ops[0].passing[1]
    assert not walk.tape.ops[0].params
    assert workspace > 0
    assert workspace in _sizes(walk)


HEAD = """\
{}            [2, 128]               [2, 128, 30000]        --
├─Embedding: 1-1             [2, 128]               [2, 128, 64]           640,000
├─Linear: 1-2                [2, 128, 64]           [2, 128, 30000]        1,950,000
"""


def test_the_last_output_is_let_go_before_the_loss_unless_the_model_takes_it() -> None:
    loop, _ = _step(HEAD.format("SmallLanguageNet"))
    library, _ = _step(HEAD.format("BertForMaskedLM "))
    assert Stream(loop.tape).returned > 0
    assert Stream(library.tape).returned == -1


BLOCKS = """\
VisionTransformer            [2, 3, 32, 32]         [2, 17, 64]            1,152
├─Conv2d: 1-1                [2, 3, 32, 32]         [2, 64, 4, 4]          12,352
├─Block: 1-2                 [2, 17, 64]            [2, 17, 64]            --
│    └─LayerNorm: 2-1        [2, 17, 64]            [2, 17, 64]            128
│    └─Mlp: 2-2              [2, 17, 64]            [2, 17, 64]            --
│    │    └─Linear: 3-1      [2, 17, 64]            [2, 17, 256]           16,640
│    │    └─GELU: 3-2        [2, 17, 256]           [2, 17, 256]           --
│    │    └─Linear: 3-3      [2, 17, 256]           [2, 17, 64]            16,448
"""


def test_what_class_tokens_are_joined_to_goes_on_in_full_precision() -> None:
    walk, _ = _step(BLOCKS, "amp-bf16")
    sums = [op for op in walk.tape.ops if op.alias and len(op.ins) == 2]
    assert [(op.out.width, sorted(tensor.width for tensor in op.ins)) for op in sums] == [(4, [2, 4])]


PADDED = """\
Net                          [2, 16, 32, 32]        [2, 16, 16, 16]        --
├─Conv2d{}: 1-1            [2, 16, 32, 32]        [2, 16, 16, 16]        2,320
"""


def test_a_layer_with_dynamic_padding_keeps_a_padded_copy() -> None:
    same, _ = _step(PADDED.format("Same"))
    saved = [same.tape.sizes[store] for op in same.tape.ops for store in op.saved]
    assert BATCH * 16 * 33 * 33 * 4 in saved
