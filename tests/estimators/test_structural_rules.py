"""What the rows of a summary imply without saying it: functions, hidden insides, shared weights, inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

import pytest

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import simulate
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.structural.layers.convolutions import first_convolution, taps_and_groups
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary
from tests.support.kept_steps import simulated
from tests.support.measured_texts import texts_of

RULE = "=" * 100 + "\n"
BATCH = 32


def _walk(rows: str, columns: str, precision: str = "fp32") -> Walk:
    text = f"{RULE}Layer (type:depth-idx)  {columns}  Param #\n{RULE}{rows}{RULE}"
    job = TrainingJob(BATCH, precision=precision)
    return simulated(read_summary(text), job)[0]


def _saved(walk: Walk) -> int:
    tape = walk.tape
    return sum(tape.sizes[store] for store in {s for op in tape.ops for s in (*op.saved, *op.kept)})


def _both(rows: str) -> Walk:
    return _walk(rows, "Input Shape            Output Shape          ")


BLOCK = """\
Net                          [2, 64, 28, 28]        [2, 64, 28, 28]        --
├─ConvNeXtBlock: 1-1         [2, 64, 28, 28]        [2, 64, 28, 28]        64
│    └─Conv2d: 2-1           [2, 64, 28, 28]        [2, 64, 28, 28]        3,200
│    └─LayerNorm: 2-2        [2, 28, 28, 64]        [2, 28, 28, 64]        128
│    └─Linear: 2-3           [2, 28, 28, 64]        [2, 28, 28, 64]        4,160
"""


def test_a_view_of_what_was_just_made_is_not_the_blocks_input() -> None:
    # The scale of the branch keeps the branch, which an Identity shows in the shape of the block's input.
    plain = _saved(_both(BLOCK))
    shown = _saved(
        _both(BLOCK + "│    └─Identity: 2-4         [2, 64, 28, 28]        [2, 64, 28, 28]        --\n")
    )
    assert shown == plain


CONVOLUTIONS = """\
Net                          [2, 3, 32, 32]         [2, 10]                --
├─Conv2d: 1-1                [2, 3, 32, 32]         [2, 16, 32, 32]        448
├─BatchNorm2d: 1-2           [2, 16, 32, 32]        [2, 16, 32, 32]        32
{}├─AdaptiveAvgPool2d: 1-4     [2, 16, 32, 32]        [2, 16, 1, 1]          --
├─Linear: 1-5                [2, 16]                [2, 10]                170
"""


def test_a_network_without_an_activation_row_calls_functions() -> None:
    row = "├─ReLU: 1-3                  [2, 16, 32, 32]        [2, 16, 32, 32]        --\n"
    assert _saved(_both(CONVOLUTIONS.format(""))) == _saved(_both(CONVOLUTIONS.format(row)))


def test_a_group_norm_before_a_convolution_is_activated() -> None:
    rows = """\
Net                          [2, 32, 16, 16]        [2, 32, 16, 16]        --
├─TimeBlock: 1-1             [2, 32, 16, 16]        [2, 32, 16, 16]        --
│    └─GroupNorm: 2-1        [2, 32, 16, 16]        [2, 32, 16, 16]        64
│    └─Conv2d: 2-2           [2, 32, 16, 16]        [2, 32, 16, 16]        9,248
"""
    image = BATCH * 32 * 16 * 16 * 4
    # The norm's input, the activation's, the convolution's.
    assert _saved(_both(rows)) >= 3 * image


def test_a_hidden_gate_computes_one_number_a_channel() -> None:
    rows = """\
ResNet                       [2, 64, 28, 28]        --
├─Sequential: 1-1            [2, 64, 28, 28]        --
│    └─Bottleneck: 2-1       [2, 64, 28, 28]        --
│    │    └─Conv2d: 3-1      [2, 64, 28, 28]        4,096
│    │    └─{}: 3-2  [2, 64, 28, 28]        2,128
"""
    columns = "Output Shape          "
    gate = _saved(_walk(rows.format("SEModule"), columns))
    block = _saved(_walk(rows.format("BasicBlock"), columns))
    assert gate < block


@pytest.mark.parametrize(
    ("params", "channels", "expected"),
    [
        (64 * 49 + 64, 64, (49, 64)),
        (64 * 64 * 9, 64, (9, 1)),
        (64 * 32 * 9, 64, (9, 2)),
        (64 * 64 + 64, 64, (1, 1)),
    ],
)
def test_kernel_and_groups_follow_from_the_parameters(
    params: int, channels: int, expected: Tuple[int, int]
) -> None:
    row = Layer("Conv2d", outputs=((-1, 64, 28, 28),), params=params)
    assert taps_and_groups(row, channels) == expected


def test_an_even_first_kernel_cuts_patches() -> None:
    row = Layer("Conv2d", outputs=((-1, 96, 56, 56),), params=96 * (3 * 16 + 1))
    assert first_convolution(row, cuts_patches=True) == (3, (4, 4))
    assert first_convolution(row, cuts_patches=False) == (3, (2, 2))


def test_the_first_convolution_of_a_volume_takes_one_channel_of_its_size() -> None:
    row = Layer("Conv3d", outputs=((-1, 32, 64, 64, 64),), params=32 * (27 + 1))
    assert first_convolution(row, cuts_patches=False) == (1, (1, 1, 1))


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("Wav2Vec2NoLayerNormConvLayer", ""),
        ("ConvNextV2LayerNorm", "layer_norm"),
        ("GammaAct", "input_act"),
        ("ConvNormAct", ""),
        ("ConvNextV2GRN", "response_norm"),
    ],
)
def test_a_class_is_known_by_the_end_of_its_name(kind: str, family: str) -> None:
    assert family_of(kind) == family


def test_time_before_batch_does_not_make_the_time_the_batch() -> None:
    rows = """\
XLNetForSequenceClassification  [2, 2]                 --
├─XLNetModel: 1-1            [2, 512, 64]           --
│    └─Embedding: 2-1        [512, 2, 64]           64,000
│    └─Dropout: 2-2          [512, 2, 64]           --
├─Linear: 1-2                [2, 2]                 130
"""
    assert _walk(rows, "Output Shape          ").summary.batch == 2


def test_tokens_taken_for_channels_make_no_absurd_width() -> None:
    texts = texts_of("timm/nest_tiny_jx@224")
    job, gpu = TrainingJob(BATCH), find_gpu("h200")
    full, cut = (
        _saved(simulate(read_summary(texts[tool].rstrip("\n") + "\n"), job, gpu)[0])
        for tool in ("torchinfo_full", "torchinfo")
    )
    assert full / 2 < cut < 3 * full


def test_a_model_that_returns_its_loss_first_is_estimated_by_its_logits() -> None:
    # As `gpumem summarize` shows a transformers model: the loss, which has no sizes, and the logits.
    rows = (
        Layer("Classifier", ((2, 10),), ((2, 64),), leaf=False),
        Layer("Linear", ((2, 10),), ((2, 64),), params=650, depth=1, name="head"),
    )
    plain = ModelSummary("test", rows, name="Classifier", batch=2, input_shapes=((2, 64),), total_params=650)
    with_loss = plain._replace(layers=(rows[0]._replace(outputs=((), (2, 10))), rows[1]))
    job, gpu = TrainingJob(BATCH), find_gpu("h200")
    assert simulate(with_loss, job, gpu)[1] == simulate(plain, job, gpu)[1]


def test_marian_shares_one_embedding_among_encoder_decoder_and_output() -> None:
    rows = """\
MarianMTModel                [2, 16]                [2, 16, 1000]          --
├─MarianModel: 1-1           [2, 16]                [2, 16, 64]            --
│    └─Embedding: 2-1        [2, 16]                [2, 16, 64]            64,000
│    └─Embedding: 2-2        [2, 16]                [2, 16, 64]            64,000
├─Linear: 1-2                [2, 16, 64]            [2, 16, 1000]          64,000
"""
    assert sum(_both(rows).tape.params) == 64_000 * 4


def _network(text: str) -> ModelSummary:
    """Lines like "  Linear 16,64 > 16,8 520": class ("!": not called), sizes of a sample ("-": not shown)."""
    layers = []
    for line in text.splitlines():
        kind, taken, _, made, params = line.split()
        inputs, outputs = (
            () if one == "-" else tuple((2, *map(int, sizes.split(","))) for sizes in one.split("+"))
            for one in (taken, made)
        )
        depth, name = (len(line) - len(line.lstrip())) // 2, kind.lstrip("!")
        layers.append(Layer(name, outputs, inputs, int(params), depth=depth, called=name == kind))
    deeper = [after.depth > layer.depth for layer, after in zip(layers, [*layers[1:], layers[0]])]
    layers = [layer._replace(leaf=not inner) for layer, inner in zip(layers, deeper)]
    total = sum(layer.params for layer in layers)
    return ModelSummary("test", tuple(layers), layers[0].kind, 2, layers[0].inputs, total, total)


NETWORKS = (Path(__file__).parent / "data" / "small_networks.txt").read_text()[2:].split("\n\n# ")


@pytest.mark.parametrize("text", NETWORKS, ids=lambda text: text.partition("\n")[0])
def test_a_small_step_is_what_it_was(text: str) -> None:
    for precision in ("fp32", "amp-bf16"):
        simulated(_network(text.partition("\n")[2].rstrip()), TrainingJob(BATCH, precision=precision))
