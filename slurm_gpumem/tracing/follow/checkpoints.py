"""Checkpoints: files of weights that a script writes, and what it computes again to save memory."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Set

import torch

from slurm_gpumem.tracing.engine import recomputed
from slurm_gpumem.tracing.fake_cuda.world import plain
from slurm_gpumem.tracing.follow.steps import Steps
from slurm_gpumem.tracing.follow.unwritten import Unwritten
from slurm_gpumem.tracing.script import foreign_files
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder


def install(
    recorder: ScriptRecorder, steps: Steps, unwritten: Unwritten, repeats: Callable[[], bool]
) -> None:
    """Notice both; `repeats`: whether the script has nothing new to show."""
    real = torch.save
    written: Set[str] = set()

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        steps.saw("checkpoint")
        path = os.path.abspath(os.fsdecode(f)) if isinstance(f, (str, bytes, os.PathLike)) else ""
        if path in written and repeats() and os.path.exists(path):
            return None  # the weights are made up: the file is as good as it was, and takes time to write
        if path:
            written.add(path)
            unwritten.wrote(path)
            foreign_files.about_to_write(path)  # PyTorch's C++ opens it
        return real(obj, f, *args, **kwargs)

    torch.save = save
    import torch.utils.checkpoint as checkpointing

    recomputed.install(recorder, lambda: setattr(steps, "checkpointing", True))
    # What is computed again is compared with the first time, which was noted where no mode is at work.
    compared: Dict[str, Any] = getattr(checkpointing, "_allowed_determinism_checks_to_fns", {})
    compared.update({name: plain(function) for name, function in compared.items()})
