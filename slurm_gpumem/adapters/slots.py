"""Checkpoints for plain PyTorch and accelerate, so that a job can run in time slots (gpumem docs slots).

    slot = Slot(model=model, optimizer=optimizer, scheduler=scheduler)   # or Slot(accelerator=accelerator)
    for step in slot.steps(10_000):
        train(step)

Where the job goes on from a checkpoint, everything named is restored, random numbers too, and the steps go
on where they were. It saves when it is told, ends the program with exit code 75, and does nothing outside of
our jobs. A checkpoint is a folder that appears whole or not at all, so a program may be killed at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional

import torch
import torch.distributed as dist

from slurm_gpumem.adapters.slot_run import SlotRun, resume_file

_STEP, _PREFIX = "step.json", "step-"
_AGREE_EVERY = 10
"""Steps between two times that several processes ask each other: it costs each of them a little."""


class Slot:
    """Counts steps, saves and restores."""

    def __init__(self, *, accelerator: Any = None, every_s: Optional[float] = None, **parts: Any) -> None:
        """`parts` have state_dict() and load_state_dict(); `every_s` also saves that often, against kills."""
        self._run = SlotRun()
        self._accelerator, self._parts, self._every_s = accelerator, parts, every_s
        self.step = 0
        """Steps that are done."""
        self._last: Optional[int] = None
        self._saved_at = time.monotonic()
        found = resume_file()
        if found is not None:
            self._restore(Path(found))
        if rank() == 0:
            self._run.announce()

    def steps(self, total: int) -> Iterator[int]:
        """The steps that are still to do, up to `total`."""
        while self.step < total:
            yield self.step
            self.step_done()

    def step_done(self) -> None:
        """After each step, where a program has a loop of its own: may save, and may end the program."""
        self.step += 1
        if self._run.folder is None:
            return
        due = self._every_s is not None and time.monotonic() - self._saved_at >= self._every_s
        told, due = agreed(self.step, self._run.told, due)
        saved = (told or due) and self.save()
        if told and saved:
            self._run.leave(first=rank() == 0, meet=barrier)
        elif told:
            self._run.run_on()

    def save(self) -> bool:
        """Write a checkpoint now, all processes of the job together; False, with a warning, if that fails."""
        folder = self._run.folder
        if folder is None or self._last == self.step:
            return folder is not None
        began, self._saved_at = time.time(), time.monotonic()
        draft = folder / f".{_PREFIX}{self.step}"
        for stage in (self._begin, self._write, self._finish):
            if failed(self.step, problem_of(partial(stage, draft, began))):
                discard(draft)
                return False
        self._last = self.step
        return True

    def _begin(self, draft: Path, began: float) -> None:
        if rank() == 0:
            discard(draft)
            draft.mkdir()

    def _write(self, draft: Path, began: float) -> None:
        if self._accelerator is not None:
            self._accelerator.save_state(str(draft))
        else:
            _write(draft, {name: part.state_dict() for name, part in self._parts.items()})

    def _finish(self, draft: Path, began: float) -> None:
        if rank() == 0:
            (draft / _STEP).write_text(json.dumps({"step": self.step}))
            replace_checkpoint(self._run, draft, self.step, began)

    def _restore(self, folder: Path) -> None:
        self.step = self._last = json.loads((folder / _STEP).read_text())["step"]
        if self._accelerator is not None:
            self._accelerator.load_state(str(folder))
            return
        states = torch.load(folder / "rank0.pt", map_location="cpu", weights_only=True)["parts"]
        for name, part in self._parts.items():
            part.load_state_dict(states[name])
        own = folder / f"rank{rank()}.pt"
        if own.exists():
            _set_random(torch.load(own, map_location="cpu", weights_only=True)["random"])


def rank() -> int:
    """This process's number among those that train together."""
    return dist.get_rank() if _together() else 0


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def barrier() -> None:
    """Wait for the others, if there are any."""
    if _together():
        dist.barrier()


def problem_of(work: Callable[[], None]) -> Optional[Exception]:
    """What kept it from being done, such as a full disk: each library has an error of its own for that."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - told in a warning; the training goes on
        return error
    return None


def failed(step: int, problem: Optional[Exception]) -> bool:
    """Whether any of the processes has a problem with its checkpoint; all of them warn and go on together."""
    found = _most((problem is not None,))[0] if _together() else problem is not None
    if found:
        warnings.warn(
            f"gpumem: no checkpoint at step {step}: {problem or 'another process failed'}", stacklevel=3
        )
    return found


def agreed(step: int, *said: bool) -> tuple[bool, ...]:
    """What any of the processes says, the same for all of them at the same step."""
    if not _together():
        return said
    if step % _AGREE_EVERY:
        return tuple(False for _ in said)
    return _most(said)


def _most(said: tuple[bool, ...]) -> tuple[bool, ...]:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    words = torch.tensor([float(word) for word in said], device=device)
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    return tuple(bool(word) for word in words.tolist())


def _write(folder: Path, parts: Dict[str, Any]) -> None:
    """This process's file; what is the same in all of them is the first one's to write."""
    path = folder / f"rank{rank()}.pt"
    torch.save({"parts": parts if rank() == 0 else {}, "random": _random()}, path)
    # What cannot be read back must not replace what can.
    torch.load(path, weights_only=True, mmap=True)


def replace_checkpoint(run: SlotRun, draft: Path, step: int, began: float) -> None:
    """The checkpoint under its own name, ".step-7" as "step-7", once it is all on the disk; the others go."""
    for path in (*(path for path in draft.rglob("*") if path.is_file()), draft):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    final = draft.with_name(draft.name[1:])
    discard(final)  # of a run that was killed before it was linked
    os.replace(draft, final)
    run.saved(final, step, began)
    for old in (*final.parent.glob(f"{_PREFIX}*"), *final.parent.glob(f".{_PREFIX}*")):
        if old != final:
            discard(old)


def discard(checkpoint: Path) -> None:
    """Remove a checkpoint, a file or a folder, as far as that is possible."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    with contextlib.suppress(OSError):
        checkpoint.unlink()


def _random() -> Dict[str, Any]:
    """The state of all generators, in types that torch.load takes without running code."""
    state: Dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    return state


def _set_random(state: Dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
