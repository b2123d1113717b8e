"""GPUMemNet: ensembles that answer a class of memory; its upper edge is the estimate.

Trained here, on data of the published size (lab/docs/gpumemnet.md says how, and where the published text and
the authors' code differ), and run without torch or numpy. It was made for training with Adam in fp32 on an
A100 and knows no other.

    models/fitted/gpumemnet.json.xz, models/fitted/gpumemnet-transformer.json.xz:
    {"format": "gpumemnet/1", "card": {...}, "families": {family: network}}

A network has `edges` (upper edges of its classes in MiB) and `members`: lists of layers [weights by output,
bias], a ReLU between them, batch norms folded in. The Transformer-based one has `encoders`, each with members
of its own as its head. Attention is a matrix product there: in the authors' code samples attend to each other
(the encoder takes the batch for the sequence), so that a job that is asked for alone attends to itself.
"""

from __future__ import annotations

import json
import lzma
from functools import lru_cache
from math import cos, exp, log, sin, sqrt
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.published.features import Features, features
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

FORMAT = "gpumemnet/1"
PERCEPTRONS = "gpumemnet.json.xz"
ENCODERS = "gpumemnet-transformer.json.xz"
_SIZE_CAP = 8 << 20
_EPSILON = 1e-5
_WAVELENGTH = 10_000.0
Vector = List[float]
Layer = Tuple[Sequence[Sequence[float]], Sequence[float]]


def by_perceptrons(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """By the ensembles of perceptrons."""
    found = features(summary, job.batch_size)
    able = perceptrons()[found.family]
    return _edge("gpumemnet", found, able["edges"][perceptrons_class(able, found)], job, gpu)


def by_transformer(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """By the Transformer-based ensembles, which also look at the sequence of layers."""
    found = features(summary, job.batch_size)
    able = encoders()[found.family]
    return _edge("gpumemnet-transformer", found, able["edges"][encoders_class(able, found)], job, gpu)


def _edge(name: str, found: Features, edge_mib: int, job: TrainingJob, gpu: Gpu) -> Estimate:
    """A class's upper edge as an estimate."""
    from slurm_gpumem.estimators.published.formulas import unbounded

    said = (
        f"its estimator for {found.family}s; the upper edge of a class of memory on an A100",
        "Adam in fp32; parts are not known: all counts as activations",
    )
    return unbounded(name, {"activations": edge_mib}, job, gpu, said)


def perceptrons() -> Mapping[str, Any]:
    """The networks of the MLP-based estimator by family."""
    return load(data_path("models/fitted", PERCEPTRONS))


def encoders() -> Mapping[str, Any]:
    """The networks of the Transformer-based estimator by family."""
    return load(data_path("models/fitted", ENCODERS))


@lru_cache(maxsize=2)
def load(path: Path) -> Mapping[str, Any]:
    """The networks of a file by family."""
    try:
        with lzma.open(path) as file:
            content = json.loads(file.read(_SIZE_CAP))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        families: Dict[str, Any] = content["families"]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: is no file of networks ({error})") from None
    return families


def perceptrons_class(network: Mapping[str, Any], found: Features) -> int:
    """The class that the MLP-based ensemble answers."""
    return _largest(_mean(network["members"], list(found.totals)))


def encoders_class(network: Mapping[str, Any], found: Features) -> int:
    """The class that the Transformer-based ensemble answers."""
    answers = [
        _mean(encoder["members"], [*_encoded(encoder, found.sequence), *found.beside])
        for encoder in network["encoders"]
    ]
    return _largest([sum(column) for column in zip(*answers)])


def _largest(values: Vector) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _mean(members: Sequence[Sequence[Layer]], inputs: Vector) -> Vector:
    """The mean of the members' logits, as the authors average."""
    answers = []
    for layers in members:
        hidden = inputs
        for number, layer in enumerate(layers):
            hidden = _linear(layer, hidden)
            if number < len(layers) - 1:
                hidden = _relu(hidden)
        answers.append(hidden)
    return [sum(column) / len(members) for column in zip(*answers)]


def _encoded(encoder: Mapping[str, Any], sequence: Sequence[Sequence[float]]) -> Vector:
    """The sum over all places, empty ones included, of the encoded sequence."""
    length = encoder["length"]
    width = len(encoder["embedding"][1][0][1])
    empty = [0.0] * len(encoder["embedding"][0][0][0])
    padded = [*sequence[:length], *[empty] * (length - len(sequence))]
    total = [0.0] * width
    for place, entry in enumerate(padded):
        hidden = list(entry)
        for layer, scale, shift in encoder["embedding"]:
            hidden = _relu([value * scale[place] + shift[place] for value in _linear(layer, hidden)])
        hidden = [a + b for a, b in zip(hidden, _position(place, width))]
        for block in encoder["blocks"]:
            attended = [a + b for a, b in zip(hidden, _linear(block["attention"], hidden))]
            hidden = _normed(block["norm1"], attended)
            inner = _relu(_linear(block["wide"], hidden))
            hidden = _normed(block["norm2"], [a + b for a, b in zip(hidden, _linear(block["narrow"], inner))])
        total = [a + b for a, b in zip(total, hidden)]
    return total


def _position(place: int, width: int) -> Vector:
    found = []
    for number in range(width):
        angle = place * exp(-log(_WAVELENGTH) * (number - number % 2) / width)
        found.append(cos(angle) if number % 2 else sin(angle))
    return found


def _linear(layer: Layer, inputs: Sequence[float]) -> Vector:
    weights, bias = layer
    return [sum(w * x for w, x in zip(row, inputs)) + b for row, b in zip(weights, bias)]


def _relu(values: Sequence[float]) -> Vector:
    return [value if value > 0 else 0.0 for value in values]


def _normed(norm: Tuple[Sequence[float], Sequence[float]], values: Vector) -> Vector:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    divisor = sqrt(variance + _EPSILON)
    return [(value - mean) / divisor * w + b for value, w, b in zip(values, *norm)]
