"""An input that could fit a model, for messages that ask for one."""

from __future__ import annotations

from typing import Sequence, Tuple

from slurm_gpumem.summaries.types import ModelSummary

_TOKENS, _IMAGE = (512,), (3, 224, 224)


def example_input(summary: ModelSummary) -> Tuple[int, ...]:
    """One sample's shape: tokens where the first layer looks them up, else an image."""
    return _TOKENS if takes_tokens(summary) else _IMAGE


def takes_tokens(summary: ModelSummary) -> bool:
    """Whether the first layer looks whole numbers up in a table."""
    first = next((layer for layer in summary.layers if layer.leaf and layer.attributes), None)
    return first is not None and first.kind in ("Embedding", "EmbeddingBag")


def torchinfo_call(sample: Sequence[int], tokens: bool) -> str:
    """What prints a model's text with shapes, for one sample of that shape."""
    sizes = ", ".join(str(size) for size in (1, *sample))
    data = f"input_data=torch.zeros({sizes}, dtype=torch.long)" if tokens else f"input_size=({sizes})"
    return f"print(torchinfo.summary(model, {data}, depth=20))"
