"""Summaries printed by torchsummary: "Conv2d-1   [-1, 64, 112, 112]   9,408"."""

from __future__ import annotations

import re
from typing import List

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.model.types import UNKNOWN_BATCH, Layer, ModelSummary

_ROW = re.compile(r"\s*([A-Za-z_]\w*)-(\d+)\s+\[(-?[\d, -]+)\]\s+([\d,]+)\s*$")
_HEADER = re.compile(r"Layer \(type\)\s+Output Shape\s+Param #")


def recognises(lines: List[str]) -> bool:
    """Whether this looks like torchsummary's output."""
    return any(_HEADER.search(line) for line in lines) and any(_ROW.match(line) for line in lines)


def parse(lines: List[str], origin: str) -> ModelSummary:
    """Read the rows of the table."""
    layers = []
    for number, line in enumerate(lines, start=1):
        match = _ROW.match(line)
        if match:
            shape = tuple(int(size) for size in match[3].split(","))
            params = int(match[4].replace(",", ""))
            layers.append(Layer(kind=match[1], outputs=(shape,), params=params, line=number))
    if not layers:
        raise SummaryError(f"{origin}: has torchsummary's header but no layers.")
    total = sum(layer.params for layer in layers)
    batch = layers[0].outputs[0][0]
    return ModelSummary(
        format="torchsummary",
        layers=tuple(layers),
        batch=None if batch == UNKNOWN_BATCH else batch,
        total_params=total,
        trainable_params=total,
    )
