"""Read a small file on a job's node again and again, through one step of that job.

`srun --jobid JOB --overlap` works for the job's owner on 22.05, 24.11 and 26.05, takes no resources from the
job, and is asked for once: the step then prints the file by itself, so that the controller has nothing more
to do.
"""

from __future__ import annotations

import os
import subprocess
from typing import IO, Optional

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import Commands

_LOOP = 'while cat -- "$1"; do sleep "$2"; done'
_MOST_BYTES = 1 << 20
_CLOSE_S = 2.0


class FileOnNode:
    """One step; `latest` never waits."""

    def __init__(self, commands: Commands, job_id: int, node: str, path: str, every_s: float) -> None:
        self.job_id = job_id
        self.failed = ""
        """Why there is nothing more to come; "" while it goes on."""
        self._text = b""
        step = ["--jobid", str(job_id), "--overlap", "-N1", "-n1", "-w", node, "--gres=none", "--mem=0"]
        shell = ["sh", "-c", _LOOP, "sh", path, f"{every_s:g}"]
        self._step: Optional[subprocess.Popen[bytes]] = None
        try:
            self._step = commands.start(
                ["srun", "--quiet", *step, *shell], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except SlurmError as error:
            self.failed = str(error)
            return
        for pipe in (self._step.stdout, self._step.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def latest(self) -> Optional[str]:
        """The last complete line so far; None before the first."""
        step = self._step
        if step is not None:
            self._text += _read(step.stdout)
            if step.poll() is not None and not self.failed:
                # What came between the first read and its end.
                self._text += _read(step.stdout)
                said = _read(step.stderr).decode(errors="replace").strip().split("\n")[0]
                self.failed = said or f"srun ended with {step.returncode}"
        before, newline, rest = self._text.rpartition(b"\n")
        self._text = before.rpartition(b"\n")[2] + newline + rest[:_MOST_BYTES] if newline else self._text
        return self._text.rpartition(b"\n")[0].decode(errors="replace") if newline else None

    def close(self) -> None:
        """End the step."""
        if self._step is None or self._step.poll() is not None:
            return
        self._step.terminate()
        try:
            self._step.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._step.kill()
            self._step.wait()


def _read(pipe: Optional[IO[bytes]]) -> bytes:
    """What has come by now."""
    assert pipe is not None
    try:
        return os.read(pipe.fileno(), _MOST_BYTES)
    except BlockingIOError:
        return b""
