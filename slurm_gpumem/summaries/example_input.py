"""An input that could fit a model, for messages that ask for one."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from slurm_gpumem.summaries.types import Layer, ModelSummary

_SIDES = {1: (16000,), 2: (224, 224), 3: (64, 64, 64)}
"""What people have behind the channels of such convolutions: samples of sound, pixels, voxels."""
_TOKENS = (512,)
_STEPS = (100,)
"""Of a sequence, in front of a recurrent layer's features."""
_IMAGE = (3, 224, 224)
_CONVOLUTION = re.compile(r"Conv(?:Transpose)?([123])d")


def example_input(summary: ModelSummary) -> Tuple[int, ...]:
    """One sample's shape by the kind of the first layer; an image where that says nothing."""
    first = _first(summary)
    if first is None:
        return _IMAGE
    if takes_tokens(summary):
        return _TOKENS
    said = dict(first.attributes)
    width = said.get("in_features") or said.get("in_channels") or said.get("0", "")
    match = _CONVOLUTION.match(first.kind)
    if width.isdigit() and match:
        return (int(width), *_SIDES[int(match[1])])
    if width.isdigit() and "Linear" in first.kind:
        return (int(width),)
    if width.isdigit() and first.kind in ("LSTM", "GRU", "RNN"):
        return (*_STEPS, int(width))
    return _IMAGE


def takes_tokens(summary: ModelSummary) -> bool:
    """Whether the first layer looks whole numbers up in a table."""
    first = _first(summary)
    return first is not None and first.kind in ("Embedding", "EmbeddingBag")


def torchinfo_call(sample: Sequence[int], tokens: bool) -> str:
    """What prints a model's text with shapes, for one sample of that shape."""
    sizes = ", ".join(str(size) for size in (1, *sample))
    data = f"input_data=torch.zeros({sizes}, dtype=torch.long)" if tokens else f"input_size=({sizes})"
    return f"print(torchinfo.summary(model, {data}, depth=20))"


def _first(summary: ModelSummary) -> Optional[Layer]:
    return next((layer for layer in summary.layers if layer.leaf and layer.attributes), None)
