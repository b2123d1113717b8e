"""Streams and CUDA graphs: nothing runs on them here, and they take memory of their own."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from slurm_gpumem.tracing.fake_cuda.cuda_answers import Nothing
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

FURTHER_STREAM = 70 << 20
"""What the driver takes, outside of PyTorch's allocator, when work is given to a second stream: 64 to 70 MiB
on an H200, PyTorch 2.11."""
MOST_STREAMS = 32
"""PyTorch gives a script's streams out of a pool of this size, one after the other."""


def install(recorder: ScriptRecorder, report: Report) -> None:
    """Replace them, for the rest of the process's life."""
    numbers = count()

    class Stream(Nothing):
        """A stream of the script's own."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.number = 1 + next(numbers) % MOST_STREAMS

    class OnStream(Nothing):
        """`with torch.cuda.stream(side)`."""

        def __init__(self, stream: Any = None) -> None:
            self._number = stream.number if isinstance(stream, Stream) else 0

        def __enter__(self) -> OnStream:
            self._outer = (recorder.stream, recorder.pool)
            if self._number:
                recorder.once("stream", FURTHER_STREAM, "stream")
                recorder.stream, recorder.pool = f"{self._number}", self._number
            return self

        def __exit__(self, *args: Any) -> None:
            recorder.stream, recorder.pool = self._outer

    class Captured(Nothing):
        """`with torch.cuda.graph(g)`: its blocks come from a pool of its own, which keeps what they leave."""

        def __enter__(self) -> Captured:
            recorder.once("stream", FURTHER_STREAM, "stream")
            self._outer, recorder.stream = recorder.stream, "capture"
            self._before, self._peak = recorder.live_bytes, recorder.peak_bytes
            recorder.peak_bytes = recorder.live_bytes
            return self

        def __exit__(self, *args: Any) -> None:
            recorder.stream = self._outer
            kept = recorder.live_bytes
            within, recorder.peak_bytes = recorder.peak_bytes, max(recorder.peak_bytes, self._peak)
            if within > kept:
                recorder.take(within - max(kept, self._before), "cuda graph", "activations")

    def graphed(callables: Any, *args: Any, **kwargs: Any) -> Any:
        """The model itself: what it allocates is about what its graphs keep."""
        report.note(
            "make_graphed_callables is traced as the model itself. Its graphs keep their memory also while "
            "it is evaluated, or while other models run: that comes on top"
        )
        return callables

    for name, value in (
        ("Stream", Stream),
        ("stream", OnStream),
        ("graph", Captured),
        ("make_graphed_callables", graphed),
    ):
        setattr(torch.cuda, name, value)
