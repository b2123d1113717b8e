"""What GPUMemNet looks at: counts of layers, totals and the sequence of layers of a model summary.

The features are the published ones (dissertation, section 5.4.4; paper, section 4.3): batch size,
parameters, activations, activations times batch size, the number of layers of each type, the activation
function as a point on a circle, and, for the Transformer-based estimator, a tuple (type, activations,
parameters) for every layer. Neither the optimizer nor the precision is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log1p, pi, sin
from typing import Dict, List, Optional, Tuple

from lab.fit.folds import group_of
from lab.ground_truth import TOOLS, GroundTruth, MeasuredRun, real_mib
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

FAMILIES = ("mlp", "cnn", "transformer")
ACTIVATIONS = (
    "ELU", "GELU", "Identity", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh",
)  # fmt: skip
LAYER_TYPES = ("conv", "linear", "norm", "dropout", "embedding", "attention", "activation", "other")
LONGEST = 24
"""Layers in a sequence; longer ones are shortened by adding neighbours together."""

Tuples = Tuple[Tuple[float, ...], ...]


@dataclass(frozen=True)
class NetRow:
    """One measured run as GPUMemNet sees it."""

    key: str
    model: str
    group: str
    """Runs of one group are never split between training and testing."""
    family: str
    """Which of the three estimators is asked."""
    synthetic: bool
    """Whether the model is one of the three published families of generated networks."""
    real_mib: int
    features: Tuple[float, ...]
    sequence: Tuples
    """One entry a layer: its type (one of LAYER_TYPES, as zeros and a one), activations, parameters."""


def net_rows(truth: GroundTruth) -> List[NetRow]:
    """All runs whose fullest text can be read; `gpumem accuracy` names the others."""
    parsed: Dict[str, Optional[ModelSummary]] = {}
    found: List[NetRow] = []
    for run in truth.runs:
        if run.summary not in parsed:
            parsed[run.summary] = _read(truth, run)
        summary = parsed[run.summary]
        if summary is not None:
            found.append(_row(run, summary))
    return found


def _read(truth: GroundTruth, run: MeasuredRun) -> Optional[ModelSummary]:
    texts = truth.texts[run.summary]
    text = next(texts[tool] for tool in TOOLS if tool in texts)
    try:
        return read_summary(text.rstrip("\n") + "\n")
    except GpumemError:
        return None


def _row(run: MeasuredRun, summary: ModelSummary) -> NetRow:
    model = str(run.row["model"])
    layers = [_layer(summary, index) for index in range(len(summary.leaves))]
    counts = {name: sum(kind == name for kind, _, _ in layers) for name in LAYER_TYPES}
    batch = run.job.batch_size
    activations = sum(made for _, made, _ in layers)
    angle = _angle(summary)
    family = str(run.row["family"])
    return NetRow(
        key=run.key,
        model=model,
        group=group_of(model),
        family=_family(counts, summary),
        synthetic=family.startswith("synthetic-"),
        real_mib=real_mib(run, summary),
        features=(
            len(layers),
            counts["conv"],
            counts["linear"],
            counts["norm"],
            counts["dropout"],
            batch,
            log1p(summary.total_params),
            log1p(activations),
            log1p(activations * batch),
            sin(angle),
            cos(angle),
        ),
        sequence=_shortened([(*_one_of(kind), log1p(made), log1p(own)) for kind, made, own in layers]),
    )


def _layer(summary: ModelSummary, index: int) -> Tuple[str, int, int]:
    layer = summary.leaves[index]
    made = sum(summary.elements(shape, 1) for shape in layer.outputs)
    return layer_type(layer.kind), made, layer.params


def layer_type(kind: str) -> str:
    """One of LAYER_TYPES by the layer's class."""
    name = kind.lower()
    for word, found in (
        ("attention", "attention"),
        ("conv", "conv"),
        ("linear", "linear"),
        ("dense", "linear"),
        ("norm", "norm"),
        ("dropout", "dropout"),
        ("embedding", "embedding"),
    ):
        if word in name:
            return found
    return "activation" if kind in ACTIVATIONS or "elu" in name or name.endswith("tanh") else "other"


def _family(counts: Dict[str, int], summary: ModelSummary) -> str:
    """The published estimator that such a model is for: by the layers that it has most of."""
    if counts["conv"] and counts["conv"] >= counts["linear"]:
        return "cnn"
    norms = any(layer.kind in ("LayerNorm", "RMSNorm") for layer in summary.leaves)
    if counts["attention"] or counts["embedding"] or norms or counts["conv"]:
        return "transformer"
    return "mlp"


def _angle(summary: ModelSummary) -> float:
    """The activation function's place on a half circle; the one that is used most."""
    used: Dict[str, int] = {}
    for layer in summary.leaves:
        if layer.kind in ACTIVATIONS:
            used[layer.kind] = used.get(layer.kind, 0) + 1
    name = max(sorted(used), key=lambda key: used[key], default="Identity")
    return ACTIVATIONS.index(name) * pi / len(ACTIVATIONS)


def _one_of(kind: str) -> Tuple[float, ...]:
    return tuple(float(kind == name) for name in LAYER_TYPES)


def _shortened(sequence: List[Tuple[float, ...]]) -> Tuples:
    if len(sequence) <= LONGEST:
        return tuple(sequence)
    pieces: List[Tuple[float, ...]] = []
    for number in range(LONGEST):
        first = number * len(sequence) // LONGEST
        last = (number + 1) * len(sequence) // LONGEST
        members = sequence[first:last]
        pieces.append(tuple(sum(column) / len(members) for column in zip(*members)))
    return tuple(pieces)
