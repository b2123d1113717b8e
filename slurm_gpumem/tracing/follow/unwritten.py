"""Files that a script would have written in rounds that were left out, and reads later.

A model labels picture after picture, one file each, and a later stage trains with all of them; or the weights
of the last epochs are averaged. Where such a file is opened and is not there, it becomes another name of the
last one of its kind that was written since rounds were left out: in the same folder, with the same name but
for its numbers.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple

import torch

from slurm_gpumem.tracing.engine import recomputed
from slurm_gpumem.tracing.fake_cuda.world import plain
from slurm_gpumem.tracing.follow.enough_steps import Steps
from slurm_gpumem.tracing.script import foreign_files
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_WRITES = os.O_WRONLY | os.O_RDWR


class _Written(NamedTuple):
    number: int
    path: str


class Unwritten:
    """Files that were written, of some of which there would have been more."""

    def __init__(self, recorder: ScriptRecorder) -> None:
        self._recorder = recorder
        self._last: Dict[Tuple[str, str], _Written] = {}
        """By their folder, and name without numbers."""
        self._since: Optional[int] = None
        """How many had been written at the begin of the first loop whose rounds were not all run."""
        self.count = 0
        """Files that were written."""

    def install(self) -> None:
        """Hear of every file that is opened, just before it is."""
        sys.addaudithook(self._hear)

    def wrote(self, path: str) -> None:
        """A file is about to be written."""
        path = os.path.abspath(path)
        self._last[_kind(path)] = _Written(self.count, path)
        self.count += 1

    def left_out(self, since: int) -> None:
        """Rounds are left out of a loop at whose begin this many files had been written."""
        # What a later loop is about may have been collected in this one.
        self._since = since if self._since is None else min(since, self._since)

    def _hear(self, event: str, args: Any) -> None:
        if event != "open" or type(args[0]) is not str or self._recorder.off:
            return
        if args[2] & _WRITES:
            if not self._recorder.loading:
                self.wrote(args[0])
        elif self._since is not None:
            path = os.path.abspath(args[0])
            like = self._last.get(_kind(path))
            if like is None or like.number < self._since or like.path == path:
                return
            if os.path.exists(like.path) and not os.path.lexists(path):
                self._recorder.assume("a file of a round that was left out is taken to be like another's")
                with suppress(OSError):  # then the script is told that there is no such file
                    os.link(like.path, path)


def _kind(path: str) -> Tuple[str, str]:
    folder, name = os.path.split(path)
    return folder, re.sub(r"\d+", "0", name)


# Checkpoints: files of weights that a script writes, and what it computes again to save memory.


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
            foreign_files.about_to_write(path)  # PyTorch's C++ opens it
        return real(obj, f, *args, **kwargs)

    torch.save = save
    import torch.utils.checkpoint as checkpointing

    recomputed.install(recorder, lambda: setattr(steps, "checkpointing", True))
    # What is computed again is compared with the first time, which was noted where no mode is at work.
    compared: Dict[str, Any] = getattr(checkpointing, "_allowed_determinism_checks_to_fns", {})
    compared.update({name: plain(function) for name, function in compared.items()})
