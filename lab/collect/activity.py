"""How busy the GPU is meanwhile: a process that reads the driver's counters at given moments."""

from __future__ import annotations

import time
from typing import Callable, Iterator, List, Sequence

from lab.collect.workers import Message, Worker
from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.calibration.nvml import Moment, NvmlGpu


class Watcher:
    """A process that reads the counters at given moments, so that a parent of forks loads no driver."""

    def __init__(self) -> None:
        self._worker = Worker("watcher", _watch)
        answer = self._worker.hear(time.monotonic() + 30)
        if "error" in answer:
            raise UsageError(f"the GPU's activity cannot be read: {answer['error']}")

    def watch(self, moments: Sequence[float]) -> None:
        """Read at these moments (monotonic clock); at once where one is past."""
        self._worker.say({"moments": list(moments)})
        self._due = moments[-1]

    def readings(self) -> Message:
        """`at` (when it read), `windows` (between neighbouring moments), `whole` (first to last)."""
        answer = self._worker.hear(self._due + 20)
        if "error" in answer:
            raise UsageError(f"the GPU's activity cannot be read: {answer['error']}")
        return answer

    def end(self) -> None:
        """End the process."""
        self._worker.end()


def _watch(send: Callable[[Message], None], orders: Iterator[Message]) -> None:
    counters = NvmlGpu().counters()
    send({"ready": True})
    for order in orders:
        taken: List[Moment] = []
        for moment in order["moments"]:
            wait_until(moment)
            taken.append(counters.now())
        send(
            {
                "at": [moment.at for moment in taken],
                "windows": [counters.between(a, b) for a, b in zip(taken, taken[1:])],
                "whole": counters.between(taken[0], taken[-1]),
            }
        )
        for moment in taken:
            counters.free(moment)


def wait_until(moment: float) -> None:
    """Sleep until that moment of the monotonic clock."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
