"""Calls of single convolutions out of what `probe` measured: how much each took beside its results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from lab.rows import open_text
from slurm_gpumem.estimators.workspaces.convolutions import Call
from slurm_gpumem.summaries.trace_types import CALLS, Convolution

_SHAPE = ("channels", "outputs", "size", "kernel", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class MeasuredCall:
    """One call that was measured."""

    call: Call
    bytes: int
    shape: str
    """The same for all batch sizes and types."""


def load_calls(path: Path, every: int = 1) -> List[MeasuredCall]:
    """All calls of the convolutions that the GPU did not refuse, of each `every`-th line."""
    with open_text(path) as file:
        rows = (json.loads(line) for line in islice(file, 0, None, every))
        return [
            case for row in rows if row.get("kind") == "conv" and "error" not in row for case in calls_of(row)
        ]


def calls_of(row: Dict[str, Any]) -> Iterator[MeasuredCall]:
    """The calls of one convolution; fewer where its allocations cannot be told apart."""
    shape = json.dumps([row[name] for name in _SHAPE])
    calls = {name: Call(convolution_of(name, row), row["batch"]) for name in CALLS}
    call = calls["forward"]
    taken = _beyond(row["forward"], [call.output])
    if taken is not None:
        yield MeasuredCall(call, max(taken), shape)
    # cuDNN's gradients come input first, those of depthwise kernels weight first.
    for order in (("input", "weight"), ("weight", "input")):
        sizes = {"input": call.data, "weight": call.weight}
        taken = _beyond(row["backward"], [sizes[name] for name in order])
        if taken is not None:
            for name, peak in zip(order, taken[1:]):
                yield MeasuredCall(calls[name], peak, shape)
            return


def convolution_of(call: str, row: Dict[str, Any]) -> Convolution:
    """The convolution that a row, or a case, is of."""
    places = zip(
        *(row[name] for name in ("size", "kernel", "stride", "padding", "dilation", "output_padding"))
    )
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        if row["transposed"]
        else (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d, extra in places
    ]
    return Convolution(
        call=call, dtype=row["dtype"], batch=(0, 1), channels=row["channels"], outputs=row["outputs"],
        size=tuple(row["size"]), out_size=tuple(sizes), kernel=tuple(row["kernel"]),
        stride=tuple(row["stride"]), padding=tuple(row["padding"]), dilation=tuple(row["dilation"]),
        groups=row["groups"], transposed=row["transposed"], channels_last=row["channels_last"],
    )  # fmt: skip


def _beyond(events: Sequence[int], results: List[int]) -> Optional[List[int]]:
    """Most bytes held beside the results: before the first, after it, after the next; None if they differ."""
    peaks, held, left = [0], 0, list(results)
    for size in events:
        if left and size == left[0]:
            left.pop(0)
            peaks.append(held)
        else:
            held += size
            peaks[-1] = max(peaks[-1], held)
    return None if left or held else peaks
