"""Ask Slurm without waiting: for the sampler, which has a node to look at in the meantime."""

from __future__ import annotations

import os
import subprocess
import time
from typing import IO, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.queue import cancel_command, line_command

_TIMEOUT_S = 10.0
_CLOSE_S = 2.0
_MOST_BYTES = 1 << 24
"""A job's answer has a few hundred; one that is an array's last task comes with all of the array's."""


class Reply(NamedTuple):
    """What a command had to say."""

    text: str
    error: str
    ok: bool


class Background:
    """One question at a time, and orders whose outcome nobody waits for."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._question: Optional[subprocess.Popen[bytes]] = None
        self._asked = 0.0
        self._said: Tuple[IO[bytes], ...] = ()
        self._orders: List[subprocess.Popen[bytes]] = []

    @property
    def is_asking(self) -> bool:
        """Whether a question is under way."""
        return self._question is not None

    def ask(self, argv: Sequence[str]) -> None:
        """Put a question; a command that cannot be started is never answered."""
        self._orders = [order for order in self._orders if order.poll() is None]
        self._asked = time.monotonic()
        # In memory, not through pipes: nobody reads them while the command writes.
        self._said = (_memory(), _memory())
        self._question = self._start(argv, *(file.fileno() for file in self._said))

    def answer(self) -> Optional[Reply]:
        """The answer, once, when it has come; None before that, and when there is none to be had."""
        question = self._question
        if question is None:
            return None
        if question.poll() is None:
            if time.monotonic() - self._asked > _TIMEOUT_S:
                _end(question)
                self._question = None
            return None
        self._question = None
        text, error = map(_read, self._said)
        return Reply(text, error, question.returncode == 0)

    def warn(self, job_id: int, message: str) -> None:
        """A line on a job's stderr."""
        self._order(line_command(job_id, message))

    def cancel(self, name: str) -> None:
        """End a job."""
        self._order(cancel_command(name))

    def close(self) -> None:
        """Wait a little for what was started; kill what hangs."""
        for started in [*self._orders, *([self._question] if self._question else [])]:
            try:
                started.wait(timeout=_CLOSE_S)
            except subprocess.TimeoutExpired:
                _end(started)

    def _order(self, argv: Sequence[str]) -> None:
        started = self._start(argv, subprocess.DEVNULL, subprocess.DEVNULL)
        if started is not None:
            self._orders.append(started)

    def _start(self, argv: Sequence[str], stdout: int, stderr: int) -> Optional[subprocess.Popen[bytes]]:
        try:
            return self._commands.start(argv, stdout=stdout, stderr=stderr)
        except SlurmError:
            # No answer: whoever asked goes on without, and asks again later.
            return None


def _memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("reply"), "w+b")


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read(_MOST_BYTES).decode(errors="replace")


def _end(started: subprocess.Popen[bytes]) -> None:
    started.kill()
    started.wait()
