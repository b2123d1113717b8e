"""One run of a job in time slots, as its program sees it: when to save, where, and what to go on from.

The node's hooks set the variables and its sampler sends the signal (gpumem docs slots). What the adapters
for PyTorch, accelerate, Lightning and Hugging Face's Trainer have in common; it needs none of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Callable, Mapping, NoReturn, Optional, Union

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.files import remove
from slurm_gpumem.formats.slot_state import FOLDER_VARIABLE, LATEST, SlotState, write_slot_state
from slurm_gpumem.slurm.client import COMMANDS, slurm_version
from slurm_gpumem.slurm.state.queue import REQUEUED_IN_GRACE_TIME, in_grace_time, job_name

EXIT_CODE = 75
"""EX_TEMPFAIL: the program has not failed, it wants to be run again."""
_ASK_EVERY_S = 2.0


def resume_file(env: Mapping[str, str] = os.environ) -> Optional[str]:
    """The checkpoint that this run is to go on from, a file or a folder; None where it begins."""
    return env.get("GPUMEM_RESUME_FILE") or None if env.get("GPUMEM_RESUME") else None


class SlotRun:
    """Knows when the program was told to save, and notes what it has saved."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        folder, save_at = env.get(FOLDER_VARIABLE), env.get("GPUMEM_SAVE_AT")
        self.folder = _made(Path(folder)) if folder else None
        """None outside of our jobs: then nothing is saved."""
        self._save_at = float(save_at) if save_at else None
        self._state = SlotState(int(env.get("SLURM_RESTART_COUNT") or 0))
        self._told_at: Optional[float] = None
        self._ended_by_slurm = False
        if self.folder is not None:
            self.listen()

    def listen(self) -> None:
        """Catch the slot's signal, and SIGTERM, which preemption sends; the clock counts as well."""
        try:
            for number in (signal.SIGUSR1, signal.SIGTERM):
                signal.signal(number, self._on_signal)
        except ValueError:
            warnings.warn("gpumem: signals reach a program's main thread only: the clock tells", stacklevel=3)

    @property
    def told(self) -> bool:
        """Whether the program is to save and end."""
        if self._told_at is None and self._save_at is not None and time.time() >= self._save_at:
            self._told_at = time.time()
        return self._told_at is not None and self.folder is not None

    def announce(self) -> None:
        """Say that this program can save; one process of the job does."""
        if self.folder is not None:
            write_slot_state(self.folder, self._state)

    def saved(self, checkpoint: Union[str, Path], step: int, began: float) -> None:
        """A whole checkpoint is there: what is run next goes on from it; `began` is when saving did."""
        assert self.folder is not None
        took = ceil(time.time() - min(began, self._told_at or began))
        link = self.folder / f".{LATEST}.{os.getpid()}"
        remove(link)
        os.symlink(os.path.abspath(checkpoint), link)
        os.replace(link, self.folder / LATEST)
        self._state = self._state._replace(step=step, save_s=max(took, self._state.save_s))
        write_slot_state(self.folder, self._state)

    def leave(self, *, first: bool = True, meet: Callable[[], None] = lambda: None) -> NoReturn:
        """End the program: for its slot, or since Slurm ends it anyway.

        `first` is the process that saved; `meet` waits until all processes of the program are here.
        """
        # Python's end undoes handlers: a signal that comes only now would kill it, and count as a failure.
        with contextlib.suppress(ValueError):  # outside the main thread
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if first:
            self._wait_for_requeue()
        meet()
        if first and self.folder is not None and not self._ended_by_slurm:
            write_slot_state(self.folder, self._state._replace(ended=True))
        sys.exit(EXIT_CODE)

    def _wait_for_requeue(self) -> None:
        """Stay for the grace time of a preemption, where Slurm brings back only what it has ended itself."""
        job, stays = job_name(os.environ), False
        while job is not None:
            with contextlib.suppress(SlurmError):  # no answer: as before
                preempted = in_grace_time(COMMANDS, job)
                stays = preempted and slurm_version() < REQUEUED_IN_GRACE_TIME
                self._ended_by_slurm = self._ended_by_slurm or preempted
            if not stays:
                return
            time.sleep(_ASK_EVERY_S)

    def run_on(self) -> None:
        """Nothing could be saved: the program goes on, until it is told again."""
        self._told_at = self._save_at = None

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self._told_at = self._told_at or time.time()
        # Preempted, cancelled or out of time: what follows is Slurm's to say.
        self._ended_by_slurm = self._ended_by_slurm or number == signal.SIGTERM


def _made(folder: Path) -> Optional[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warnings.warn(
            f"gpumem: no checkpoints: {folder}: {error.strerror}; GPUMEM_CHECKPOINTS names another folder",
            stacklevel=3,
        )
        return None
    return folder
