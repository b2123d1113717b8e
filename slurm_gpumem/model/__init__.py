"""From the text of a model summary to a `ModelSummary`: one file a format; `summarize` makes our own."""

from __future__ import annotations

from typing import Any

__all__ = ["summarize"]


def __getattr__(name: str) -> Any:
    """`summarize` needs torch, which nothing else here does: it is imported when asked for."""
    if name == "summarize":
        from slurm_gpumem.model.live import summarize

        return summarize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
