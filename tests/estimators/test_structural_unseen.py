"""What a step does between the rows of a summary: attention in plain blocks, activations, the loss."""

from __future__ import annotations

import pytest

from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary
from tests.support.kept_steps import simulated

HEAD = """\
==========================================================================================
Layer (type:depth-idx)          Input Shape          Output Shape         Param #
==========================================================================================
Net                             [2, 512, 64]         [2, 512, 64]         --
├─EncoderLayer: 1-1             [2, 512, 64]         [2, 512, 64]         --
│    └─LayerNorm: 2-1           [2, 512, 64]         [2, 512, 64]         128
"""
TAIL = "==========================================================================================\n"


def _saved(rows: str, precision: str = "fp32") -> int:
    """Bytes that the forward pass keeps."""
    job = TrainingJob(batch_size=64, precision=precision)
    walk, _ = simulated(read_summary(HEAD + rows + TAIL), job)
    tape = walk.tape
    kept = {store for op in tape.ops for store in (*op.saved, *op.kept)}
    return sum(tape.sizes[store] for store in kept)


def test_a_packed_projection_before_one_of_a_third_is_attention_in_any_block() -> None:
    second = "│    └─Linear: 2-3              [2, 512, 64]         [2, 512, 64]         4,160\n"
    packed = _saved(
        "│    └─Linear: 2-2              [2, 512, 64]         [2, 512, 192]        12,480\n" + second
    )
    plain = _saved(
        "│    └─Linear: 2-2              [2, 512, 64]         [2, 512, 64]         4,160\n" + second
    )
    tokens = 64 * 512 * 64 * 4
    assert packed - plain >= 3 * tokens


def test_a_dropout_between_widening_and_narrowing_layers_hides_an_activation() -> None:
    up = "│    └─Linear: 2-2              [2, 512, 64]         [2, 512, 256]        16,640\n"
    drop = "│    └─Dropout: 2-3             [2, 512, 256]        [2, 512, 256]        --\n"
    act = "│    └─ReLU: 2-4                [2, 512, 256]        [2, 512, 256]        --\n"
    down = "│    └─Linear: 2-5              [2, 512, 256]        [2, 512, 64]         16,448\n"
    assert _saved(up + drop + down) == _saved(up + act + drop + down)


def test_dropout_of_whole_channels_keeps_one_number_a_channel() -> None:
    rows = "│    └─{}: 2-2        [2, 512, 64]         [2, 512, 64]         --\n"
    assert _saved(rows.format("Dropout1d")) < _saved(rows.format("Dropout"))


@pytest.mark.parametrize("kind", ["MyLoss", "LayerNorm", "LlamaRMSNorm", "Linear", "ReLU"])
def test_a_layer_that_gives_or_takes_a_single_number_is_no_error(kind: str) -> None:
    layers = (Layer("MyLoss", outputs=((),), inputs=((8, 64),)), Layer(kind, outputs=((),), inputs=((),)))
    summary = ModelSummary(format="gpumem", layers=layers, batch=8, input_shapes=((8, 64),))
    walk, _ = simulated(summary, TrainingJob(batch_size=8))
    assert walk.tape.ops
