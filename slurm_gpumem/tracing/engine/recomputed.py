"""Checkpointed activations: noticed, and what is computed again meets the guesses of the first time.

Sizes that depend on data are guessed (`unknown_values`), one after the other. A block that is computed again
in the backward pass must get the sizes that it had, or torch says that its tensors are others than before.
For the same reason no part of it is left out then (`follow.fast_forward`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch.utils.checkpoint as checkpointing

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder

_INSIDE = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
"""What torch's checkpoint() looks up at each call, by whichever name the model imported it."""
Replaced = Callable[[Any], Any]
"""A function that is checkpointed to the one that is called in its place."""


def install(recorder: Recorder, saw: Callable[[], None]) -> None:
    """From now on each checkpoint is told to `saw`, and guesses are the same in it when it is run again."""

    def replaced(function: Any) -> Any:
        saw()
        return _with_its_guesses(recorder, function)

    for name in _INSIDE:
        if hasattr(checkpointing, name):
            setattr(checkpointing, name, _noticed(recorder, getattr(checkpointing, name), replaced))


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
