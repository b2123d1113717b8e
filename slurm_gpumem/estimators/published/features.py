"""What GPUMemNet reads of a model summary, counted as its authors' scripts count.

Three data sets, three ways of counting. MLPs and CNNs: the outputs of linear layers, convolutions, batch
norms, dropouts and activation functions (no pooling but the adaptive one, which counts its channels).
Transformers: an embedding counts all its numbers, a linear layer the features of one token, layer norms and
dropouts as many as the layer before them. Neither optimizer nor precision is looked at.
"""

from __future__ import annotations

from math import cos, pi, sin
from typing import Dict, List, NamedTuple, Tuple

from slurm_gpumem.summaries.types import Layer, ModelSummary

MLP, CNN, TRANSFORMER = "mlp", "cnn", "transformer"
FAMILIES = (MLP, CNN, TRANSFORMER)
ACTIVATIONS = {
    MLP: (
        "ELU", "GELU", "Identity", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh",
    ),
    CNN: ("ELU", "GELU", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh"),
}  # fmt: skip
"""In this order they lie on a half circle; models without any count as ReLU."""
_LAST = ("Softmax", "Sigmoid")
_CODES = {
    MLP: {"linear": (0.0, 1.0)},
    CNN: {"conv": (0.0, 1.0), "linear": (1.0, 1.0), "norm": (0.0, 0.0), "dropout": (0.0, 0.0)},
}
_OTHER_CODE = (1.0, 0.0)
_TRANSFORMER_ORDER = ("layer norm", "embedding", "linear", "dropout")


class Row(NamedTuple):
    """A layer that counts."""

    what: str
    kind: str
    activations: int
    """Of one sample."""
    params: int


class Features(NamedTuple):
    """The input of both estimators."""

    family: str
    totals: Tuple[float, ...]
    """For the perceptrons."""
    beside: Tuple[float, ...]
    """For the Transformer-based estimator, beside the sequence."""
    sequence: Tuple[Tuple[float, ...], ...]
    """A code of the layer's type, activations, parameters; one entry a layer."""


def features(summary: ModelSummary, batch_size: int) -> Features:
    """Everything that GPUMemNet knows of a job."""
    family = family_of(summary)
    rows = counted(summary, family)
    if family == TRANSFORMER:
        return _transformer(summary, rows, batch_size)
    return (_cnn if family == CNN else _mlp)(rows, batch_size)


def family_of(summary: ModelSummary) -> str:
    """The data set whose estimator answers for such a model; the publications leave this choice to people."""
    whats = [_what(layer.kind) for layer in summary.layers]
    convolutions, linear = whats.count("conv"), whats.count("linear")
    if convolutions and convolutions >= linear:
        return CNN
    if convolutions or any(what in whats for what in ("layer norm", "embedding", "attention")):
        return TRANSFORMER
    return MLP


def counted(summary: ModelSummary, family: str) -> List[Row]:
    """The layers that the authors' script for this family counts, in the order of the summary."""
    if family == TRANSFORMER:
        return _tokens(summary)
    rows = []
    for layer in summary.layers:
        what = _what(layer.kind)
        wanted = what in ("linear", "norm", "dropout", "activation", "softmax") or (
            family == CNN and what in ("conv", "adaptive pool")
        )
        if wanted and (layer.leaf or what == "activation"):
            rows.append(Row(what, layer.kind, _made(summary, layer, what), layer.params))
    return rows


def _tokens(summary: ModelSummary) -> List[Row]:
    rows: List[Row] = []
    current = 0
    for layer in summary.layers:
        what = _what(layer.kind)
        if what == "attention":
            # Its output projection is the row that the authors see.
            what = "linear"
        if what not in _TRANSFORMER_ORDER:
            continue
        if what == "embedding":
            current = sum(summary.elements(shape, 1) for shape in layer.outputs[:1])
        elif what == "linear" and layer.outputs and layer.kind != "Conv1D":
            # GPT-2's Conv1D does not print its features: the authors carry the count before it on.
            current = layer.outputs[0][-1]
        rows.append(Row(what, layer.kind, current, layer.params))
    return rows


def _made(summary: ModelSummary, layer: Layer, what: str) -> int:
    if what == "adaptive pool":
        return layer.outputs[0][1] if layer.outputs and len(layer.outputs[0]) > 1 else 0
    return sum(summary.elements(shape, 1) for shape in layer.outputs[:1])


def _what(kind: str) -> str:
    name = kind.lower()
    if kind == "MultiheadAttention":
        return "attention"
    if kind in ("Linear", "Dense", "Conv1D"):
        return "linear"
    for word, found in (
        ("conv2d", "conv"),
        ("batchnorm", "norm"),
        ("layernorm", "layer norm"),
        ("dropout", "dropout"),
        ("embedding", "embedding"),
        ("adaptiveavgpool", "adaptive pool"),
    ):
        if name.startswith(word):
            return found
    if kind in _LAST:
        return "softmax"
    return "activation" if _function(kind) in ACTIVATIONS[MLP] else ""


def _function(kind: str) -> str:
    return "ReLU" if kind == "ReLU6" else kind


def _angle(rows: List[Row], family: str) -> float:
    names = ACTIVATIONS[family]
    used: Dict[str, int] = {}
    for row in rows:
        name = _function(row.kind)
        if name in names:
            used[name] = used.get(name, 0) + 1
    most = max(used, key=lambda name: used[name], default="ReLU")
    return names.index(most) * pi / len(names)


def _count(rows: List[Row], what: str) -> int:
    return sum(row.what == what for row in rows)


def _sums(rows: List[Row]) -> Tuple[int, int]:
    return sum(row.activations for row in rows), sum(row.params for row in rows)


def _mlp(rows: List[Row], batch: int) -> Features:
    activations, params = _sums(rows)
    angle = _angle(rows, MLP)
    layers = _count(rows, "linear")
    return Features(
        MLP,
        (
            layers,
            batch,
            params,
            activations,
            _count(rows, "norm"),
            _count(rows, "dropout"),
            sin(angle),
            cos(angle),
        ),
        (batch, params, activations, activations * batch),
        tuple((*_CODES[MLP].get(row.what, _OTHER_CODE), row.activations, row.params) for row in rows),
    )


def _cnn(rows: List[Row], batch: int) -> Features:
    activations, params = _sums(rows)
    angle = _angle(rows, CNN)
    counts = (_count(rows, "conv"), _count(rows, "norm"), _count(rows, "dropout"))
    return Features(
        CNN,
        (
            len(rows),
            activations,
            activations * batch,
            params,
            batch,
            *counts,
            sin(angle),
            cos(angle),
        ),
        # The authors' loader makes whole numbers of these, the sine and the cosine included.
        (batch, params, activations, activations * batch, *counts, int(sin(angle)), int(cos(angle))),
        tuple((*_CODES[CNN].get(row.what, _OTHER_CODE), row.activations * batch, row.params) for row in rows),
    )


def _transformer(summary: ModelSummary, rows: List[Row], batch: int) -> Features:
    activations = sum(row.activations for row in rows)
    params = summary.total_params
    projections = sum(row.kind == "MultiheadAttention" for row in rows)
    linear, norms = _count(rows, "linear"), _count(rows, "layer norm")
    dropouts = _count(rows, "dropout")
    return Features(
        TRANSFORMER,
        (
            len(rows),
            activations,
            activations * batch,
            params,
            batch,
            projections,
            linear,
            norms,
            dropouts,
        ),
        (
            len(rows),
            activations,
            params,
            batch,
            projections,
            linear,
            activations * batch,
            norms,
            dropouts,
        ),
        tuple(_token_entry(row, batch) for row in rows),
    )


def _token_entry(row: Row, batch: int) -> Tuple[float, ...]:
    # Layer norms and dropouts are not multiplied by the batch in the authors' script.
    times = batch if row.what in ("embedding", "linear") else 1
    code = tuple(float(row.what == what) for what in _TRANSFORMER_ORDER)
    return (*code, row.activations * times, row.params)
