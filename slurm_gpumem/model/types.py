"""What every parser returns and every estimator reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

Shape = Tuple[int, ...]
"""Sizes of one tensor. The batch dimension is `UNKNOWN_BATCH` where the summary writes -1 or None."""

UNKNOWN_BATCH = -1


@dataclass(frozen=True)
class Layer:
    """One row of a summary, in the order the summary shows (the forward order, parents before children)."""

    kind: str
    """Class name as written, without a trailing index: "Conv2d"."""
    outputs: Tuple[Shape, ...] = ()
    """Shapes of its outputs; empty when the summary does not say."""
    inputs: Tuple[Shape, ...] = ()
    params: int = 0
    """Parameters of this module itself, without its children's; 0 for a repeated (shared) one."""
    trainable: bool = True
    depth: int = 0
    """Nesting: 0 for a top-level row."""
    name: str = ""
    """Attribute name ("layer1.0.conv1", "fc") where the summary gives one."""
    leaf: bool = True
    """False for a container whose children are rows of their own."""
    repeated: bool = False
    """True when the same module was already counted (torchinfo's "(recursive)")."""
    kernel: Optional[Shape] = None
    """Kernel size where the summary gives it."""
    attributes: Tuple[Tuple[str, str], ...] = ()
    """What the text says about it beyond shapes ("in_features" → "512"), in order."""
    line: int = 0
    """Line of the text, from 1; for messages."""


@dataclass(frozen=True)
class ModelSummary:
    """A model as its summary tells it."""

    format: str
    layers: Tuple[Layer, ...]
    name: str = ""
    """Class of the model or the file's stem; only for people."""
    batch: Optional[int] = None
    """Batch size the summary was made with; None when its shapes do not fix it."""
    input_shapes: Tuple[Shape, ...] = ()
    total_params: int = 0
    trainable_params: int = 0
    warnings: Tuple[str, ...] = ()
