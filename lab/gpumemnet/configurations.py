"""The published data sets, drawn again: MLPs, CNNs and Transformers as the authors' launchers draw them.

Ranges as in the dissertation's tables 5.2, 5.4 and 5.6; where the text leaves a choice open or their launcher
does something else, as the launcher does: convolutions are 3 x 3, nothing is pooled before the last layer,
Transformers are encoders. Residual and dense CNNs are not drawn: the authors' code drops them before
training. Each configuration is made of rows alone, without torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

from slurm_gpumem.estimators.published.features import ACTIVATIONS, CNN, MLP, TRANSFORMER
from slurm_gpumem.summaries.types import Layer, ModelSummary

SIZES = {MLP: 3000, CNN: 6500, TRANSFORMER: 5000}
"""Configurations of the published data sets."""
SEED = 99
_MOST_FILTERS = 2048
_BATCH = 2
"""Of the shapes in a summary; estimates scale them."""
_MLP_SHAPES = ("pyramid", "uniform", "bottleneck", "gradual")
_CNN_SHAPES = ("pyramid", "uniform", "bottleneck", "gradual", "hourglass")


@dataclass(frozen=True)
class Configuration:
    """A network and how it is trained; Adam, fp32 and cross-entropy are the same for all."""

    family: str
    number: int
    batch: int
    arguments: Dict[str, Any]
    """What `modules.build` makes the network of."""


def configuration(family: str, number: int) -> Configuration:
    """The network of that number, the same each time and whatever others are drawn."""
    rng = random.Random(f"{SEED} {family} {number}")
    batch, arguments = _DRAW[family](rng)
    return Configuration(family, number, batch, arguments)


def summary_of(drawn: Configuration) -> ModelSummary:
    """Its summary, as a tool with shapes would print it."""
    return _ROWS[drawn.family](drawn.arguments)


# -- MLPs ----------------------------------------------------------------------------------------


def _draw_mlp(rng: random.Random) -> Tuple[int, Dict[str, Any]]:
    inputs = int(rng.uniform(4, 4096))
    outputs = int(rng.uniform(1, max(2.0, inputs * 0.25)))
    batch = max(1, int(rng.uniform(1, 256) * 4))
    depth = int(rng.uniform(1, 11))
    shape, activation = rng.choice(_MLP_SHAPES), rng.choice(ACTIVATIONS[MLP])
    return batch, {
        **mlp_arguments(shape, inputs, outputs, depth, activation),
        "dropout": rng.choice((0.0, rng.uniform(0.1, 0.5))),
        "norm": rng.random() < 0.5,
    }


def mlp_arguments(shape: str, inputs: int, outputs: int, depth: int, activation: str) -> Dict[str, Any]:
    """An MLP of one of the published shapes, without norms and dropout."""
    return {
        "inputs": inputs,
        "widths": _mlp_widths(shape, inputs, outputs, depth),
        "outputs": outputs,
        "activation": activation,
        "dropout": 0.0,
        "norm": False,
    }


def _mlp_widths(shape: str, inputs: int, outputs: int, depth: int) -> List[int]:
    widths = []
    width = inputs
    for _ in range(depth + (shape == "bottleneck")):
        if shape in ("pyramid", "bottleneck"):
            width = max(width // 2, outputs)
        elif shape == "gradual":
            width = max(width - (inputs - outputs) // depth, outputs)
        widths.append(width)
    return widths


def _mlp_rows(arguments: Dict[str, Any]) -> ModelSummary:
    rows = _Rows((_BATCH, arguments["inputs"]))
    for width in arguments["widths"]:
        rows.linear(width)
        _between(rows, arguments, "BatchNorm1d", width)
    rows.linear(arguments["outputs"])
    rows.same("Softmax" if arguments["outputs"] > 1 else "Sigmoid")
    return rows.summary("Sequential")


# -- CNNs ----------------------------------------------------------------------------------------


def _draw_cnn(rng: random.Random) -> Tuple[int, Dict[str, Any]]:
    classes = rng.randint(2, 22_000)
    base, depth = rng.randint(16, 512), int(rng.uniform(1, 30))
    return int(rng.uniform(1, 32)) * 2, {
        "channels": rng.choice((1, 3)),
        "pixels": int(rng.uniform(16, 113)) * 2,
        "filters": _filters(rng.choice(_CNN_SHAPES), base, depth),
        "classes": classes,
        "activation": rng.choice(ACTIVATIONS[CNN]),
        "dropout": rng.choice((0.0, rng.uniform(0.1, 0.5))),
        "norm": rng.random() < 0.5,
    }


def _filters(shape: str, base: int, depth: int) -> List[int]:
    """Filters of each layer: growth is spread over the depth, up to 2,048."""
    ratio = _MOST_FILTERS / base
    found = []
    for layer in range(depth):
        if shape == "pyramid":
            count = base * ratio ** (layer / depth)
        elif shape == "gradual":
            count = base * ratio ** (layer / (2 * depth))
        elif shape == "bottleneck":
            steps = depth - 1 if depth > 2 else 1
            count = base * 2 if layer == 0 else base * ratio ** ((layer - 1) / steps)
        elif shape == "hourglass":
            first = depth // 2
            rest = depth - first
            count = base * ratio ** (layer / first if layer < first else (depth - layer - 1) / rest)
        else:
            count = base
        found.append(min(int(count), _MOST_FILTERS))
    return found


def _cnn_rows(arguments: Dict[str, Any]) -> ModelSummary:
    pixels = arguments["pixels"]
    rows = _Rows((_BATCH, arguments["channels"], pixels, pixels))
    for count in arguments["filters"]:
        before = rows.shape[1]
        rows.add("Conv2d", (_BATCH, count, pixels, pixels), 9 * before * count + count, kernel=(3, 3))
        _between(rows, arguments, "BatchNorm2d", count)
    rows.add("AdaptiveAvgPool2d", (_BATCH, rows.shape[1], 1, 1))
    rows.add("Flatten", rows.shape[:2])
    rows.linear(arguments["classes"])
    rows.same("Softmax")
    return rows.summary("Sequential")


def _between(rows: _Rows, arguments: Dict[str, Any], norm: str, width: int) -> None:
    if arguments["norm"]:
        rows.same(norm, 2 * width)
    rows.same(arguments["activation"], int(arguments["activation"] == "PReLU"))
    if arguments["dropout"]:
        rows.same("Dropout")


# -- Transformers --------------------------------------------------------------------------------


def _draw_transformer(rng: random.Random) -> Tuple[int, Dict[str, Any]]:
    width, heads = 1, 2
    while width % heads:
        # Their runs with heads that do not divide the width ended at once and gave no data.
        width = rng.choice((128, 256, 512, 768, 1024, 2048))
        heads = rng.choice((2, 4, 8, 12, 16))
    return rng.choice((1, 2, 4, 8, 16, 32, 64, 128)), {
        "vocabulary": int(rng.uniform(50_000, 1_000_000)),
        "width": width,
        "heads": heads,
        "depth": int(rng.uniform(2, 40)),
        "hidden": int(rng.uniform(2 * width, 4 * width)),
        "dropout": rng.uniform(0.1, 0.5),
        "length": rng.choice((128, 256, 512, 1024)),
        "classes": int(rng.uniform(400, 1001)),
    }


def _transformer_rows(arguments: Dict[str, Any]) -> ModelSummary:
    width, hidden, length = arguments["width"], arguments["hidden"], arguments["length"]
    rows = _Rows((_BATCH, length))
    whole = (_BATCH, length, width)
    rows.add("Embedding", whole, arguments["vocabulary"] * width)
    rows.container("TransformerEncoder")
    for _ in range(arguments["depth"]):
        rows.container("TransformerEncoderLayer", depth=2)
        rows.attention(width)
        rows.same("Dropout", depth=3)
        rows.same("LayerNorm", 2 * width, depth=3)
        rows.add("Linear", (_BATCH, length, hidden), width * hidden + hidden, depth=3)
        rows.same("Dropout", depth=3)
        rows.add("Linear", whole, width * hidden + width, depth=3)
        rows.same("Dropout", depth=3)
        rows.same("LayerNorm", 2 * width, depth=3)
    rows.shape = (_BATCH, width)
    rows.linear(arguments["classes"])
    return rows.summary("Transformer", own_params=length * width)


# -- Rows ----------------------------------------------------------------------------------------


class _Rows:
    """The rows of a summary, each fed by the one before."""

    def __init__(self, inputs: Tuple[int, ...]) -> None:
        self.inputs = self.shape = inputs
        self.layers: List[Layer] = []

    def add(self, kind: str, made: Tuple[int, ...], params: int = 0, *, depth: int = 1, **rest: Any) -> None:
        name = str(len(self.layers))
        self.layers.append(Layer(kind, (made,), (self.shape,), params=params, depth=depth, name=name, **rest))
        self.shape = made

    def same(self, kind: str, params: int = 0, *, depth: int = 1) -> None:
        self.add(kind, self.shape, params, depth=depth)

    def linear(self, width: int) -> None:
        self.add("Linear", (*self.shape[:-1], width), self.shape[-1] * width + width)

    def container(self, kind: str, *, depth: int = 1) -> None:
        self.add(kind, self.shape, depth=depth, leaf=False)

    def attention(self, width: int) -> None:
        """Three projections and the one of the output, which torch's module keeps to itself."""
        self.layers.append(
            Layer(
                "MultiheadAttention",
                (self.shape,),
                (self.shape,) * 3,
                params=4 * (width * width + width),
                depth=3,
                name=str(len(self.layers)),
                leaf=False,
            )
        )

    def summary(self, kind: str, own_params: int = 0) -> ModelSummary:
        top = Layer(kind, (self.shape,), (self.inputs,), params=own_params, leaf=False)
        layers = (top, *self.layers)
        total = sum(layer.params for layer in layers)
        return ModelSummary(
            "gpumemnet",
            layers,
            name=kind,
            batch=_BATCH,
            input_shapes=(self.inputs,),
            total_params=total,
            trainable_params=total,
        )


_Draw = Callable[[random.Random], Tuple[int, Dict[str, Any]]]
_DRAW: Dict[str, _Draw] = {MLP: _draw_mlp, CNN: _draw_cnn, TRANSFORMER: _draw_transformer}
_ROWS: Dict[str, Callable[[Dict[str, Any]], ModelSummary]] = {
    MLP: _mlp_rows,
    CNN: _cnn_rows,
    TRANSFORMER: _transformer_rows,
}
