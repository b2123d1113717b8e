"""torchvision's operators whose results depend on values: of boxes that overlap, all are kept.

That is the most that may remain; detectors keep a fixed number of the best afterwards.
"""

from __future__ import annotations

from typing import Any

import torch

from slurm_gpumem.tracing.recorder import add_handlers
from slurm_gpumem.tracing.script.imports import AfterImport

KEPT = "how many boxes nms keeps depends on data; took all"
_INDEX = 8
_TOGETHER = 64
"""Boxes whose overlaps with one box are bits of one number."""


def install(tracer: Any) -> None:
    """Wait for the package."""

    def operators(module: Any) -> None:
        packet = getattr(torch.ops.torchvision, "nms", None)  # not there where its library does not load
        if packet is not None:
            add_handlers({packet.default: _kept})

    AfterImport({"torchvision.extension": operators}).install()


def _kept(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Boxes in the order of their scores, a bit for each pair of them, and what is kept."""
    boxes = args[0]
    if boxes.device.type != "meta":
        return func(*args, **kwargs)
    recorder.assume(KEPT)
    count, name = int(boxes.shape[0]), func._schema.name
    sizes = [count * _INDEX, boxes.numel() * boxes.element_size(), count * _INDEX]
    taken = [recorder.take(size, name) for size in (*sizes, count * -(-count // _TOGETHER) * _INDEX) if size]
    result = torch.empty(count, dtype=torch.int64, device="meta")
    recorder.note_result(result, name)
    for number in taken:
        recorder.drop(number)
    return result
