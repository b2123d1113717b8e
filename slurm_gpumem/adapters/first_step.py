"""Write a model's summary at the first step of a training that runs anyway, for the next submission.

What the callbacks for Lightning and Hugging Face's Trainer have in common. The model is traced in a
fork, before the first backward pass; a training never fails because of it.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any, Callable, Union

import torch

from slurm_gpumem.summaries.parsers.own import save_summary
from slurm_gpumem.summaries.types import ModelSummary


def without_values(batch: Any) -> Any:
    """A batch's shapes and types, so that nothing of it stays on the GPU."""
    if isinstance(batch, torch.Tensor):
        return torch.empty_like(batch, device="meta")
    if isinstance(batch, dict):
        return {key: without_values(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [without_values(value) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return copy.copy(batch)


def write_once(path: Union[str, Path], make: Callable[[], ModelSummary]) -> bool:
    """Trace and save; False, with a warning, where that is not possible."""
    try:
        save_summary(make(), path)
    except Exception as error:  # noqa: BLE001 - no training may fail over a summary
        warnings.warn(f"gpumem: {path} was not written: {type(error).__name__}: {error}", stacklevel=2)
        return False
    return True
