"""Checkpoints: files of weights that a script writes, and activations that it computes again to save memory.

Sizes that depend on data are guessed (`unknown_values`), one after the other. A block that is computed again
in the backward pass must get the sizes that it had, or torch says that its tensors are others than before.
For the same reason no part of it is left out then (`fast_forward`).
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Set

import torch
import torch.utils.checkpoint as checkpointing

from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.fake_cuda.device import plain
from slurm_gpumem.tracing.follow.enough_steps import Steps
from slurm_gpumem.tracing.follow.written_files import Unwritten, about_to_write
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_INSIDE = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
"""What torch's checkpoint() looks up at each call, by whichever name the model imported it."""
Replaced = Callable[[Any], Any]
"""A function that is checkpointed to the one that is called in its place."""


def follow_checkpoints(
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
            about_to_write(path)  # PyTorch's C++ opens it
        return real(obj, f, *args, **kwargs)

    torch.save = save

    def replaced(function: Any) -> Any:
        steps.checkpointing = True
        return _with_its_guesses(recorder, function)

    for name in _INSIDE:
        if hasattr(checkpointing, name):
            setattr(checkpointing, name, _noticed(recorder, getattr(checkpointing, name), replaced))
    # What is computed again is compared with the first time, which was noted where no mode is at work.
    compared: Dict[str, Any] = getattr(checkpointing, "_allowed_determinism_checks_to_fns", {})
    compared.update({name: plain(function) for name, function in compared.items()})


def _with_its_guesses(recorder: Recorder, function: Any) -> Any:
    """The function, with guesses that begin where they stand now; a first call moves them on as ever."""
    shares, guess = recorder.shares, recorder.guess
    first = (shares.count, guess.reads)

    def run(*args: Any, **kwargs: Any) -> Any:
        before = (shares.count, guess.reads)
        shares.count, guess.reads = first
        try:
            return function(*args, **kwargs)
        finally:
            shares.count, guess.reads = max(before[0], shares.count), max(before[1], guess.reads)

    return run


def _whole(recorder: Recorder, function: Any) -> Any:
    """The function, which says while it runs that something is computed again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        before, recorder.computes_again = recorder.computes_again, True
        try:
            return function(*args, **kwargs)
        finally:
            recorder.computes_again = before

    return run


def _noticed(recorder: Recorder, real: Any, replaced: Replaced) -> Any:
    if isinstance(real, type):

        class Noticed(real):  # type: ignore[misc]
            @classmethod
            def apply(cls, function: Any, *args: Any, **kwargs: Any) -> Any:
                return real.apply(replaced(function), *args, **kwargs)

        return Noticed

    def noticed(function: Any, *args: Any, **kwargs: Any) -> Any:
        # Only what is computed again runs by this one; the first time, right after this, is checkpoint()'s.
        return real(_whole(recorder, replaced(function)), *args, **kwargs)

    return noticed
