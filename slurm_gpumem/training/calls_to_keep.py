"""Which measured calls of convolutions have to be kept: what neither the trees nor their neighbours tell."""

from __future__ import annotations

from statistics import median
from typing import Dict, Iterator, Mapping, Optional, Sequence, Set

from slurm_gpumem.memory.cudnn_measured import Measured, call_mark, halfway, make
from slurm_gpumem.memory.cudnn_workspace import Call, Forest, base_bytes, features, same_law
from slurm_gpumem.training.measured_calls import MeasuredCall

SLIGHT, SLIGHT_SHARE = 512 << 10, 0.01
"""Bytes, and share of input and output, by which an answer may be off."""


def to_keep(cases: Sequence[MeasuredCall], forests: Mapping[str, Forest]) -> Measured:
    """What is known of these calls, and what of it neither the trees nor calls at other batch sizes tell."""
    by_mark = {call_mark(case.call.convolution, case.call.rows): case for case in cases}
    halves = set(_turning(by_mark))

    def kept(mark: int, case: MeasuredCall) -> bool:
        if mark in halves:
            return True
        told = _told(case, by_mark, halves)
        return _wrong(case, _by_trees(case.call, forests) if told is None else told)

    return make(
        ((case.call.convolution, case.call.rows) for case in cases),
        (
            (case.call.convolution, case.call.rows, case.bytes)
            for mark, case in by_mark.items()
            if kept(mark, case)
        ),
    )


def _turning(cases: Dict[int, MeasuredCall]) -> Iterator[int]:
    """Marks of calls halfway between two powers of two at which different laws hold."""
    for low in cases.values():
        convolution, rows = low.call.convolution, low.call.rows
        if rows & (rows - 1) == 0:
            mark = call_mark(convolution, halfway(rows))
            high = cases.get(call_mark(convolution, 2 * rows))
            if mark in cases and high is not None:
                here = cases[mark].call
                if same_law((low.call, low.bytes), (high.call, high.bytes), here) is None:
                    yield mark


def _told(case: MeasuredCall, cases: Dict[int, MeasuredCall], halves: Set[int]) -> Optional[int]:
    """What the measured neighbours of a call between powers of two say; None where they say nothing."""
    convolution, rows = case.call.convolution, case.call.rows
    if rows < 3 or rows & (rows - 1) == 0:
        return None
    low = 1 << (rows.bit_length() - 1)
    points = [low, 2 * low]
    if call_mark(convolution, halfway(low)) in halves:
        points = [low, halfway(low)] if rows < halfway(low) else [halfway(low), 2 * low]
    found = [cases.get(call_mark(convolution, point)) for point in points]
    if found[0] is None or found[1] is None:
        return None
    return same_law((found[0].call, found[0].bytes), (found[1].call, found[1].bytes), case.call)


def _by_trees(call: Call, forests: Mapping[str, Forest]) -> float:
    return median(forests[call.convolution.call].answers(features(call), base_bytes(call)))


def _wrong(case: MeasuredCall, told: float) -> bool:
    off = abs(told - case.bytes)
    return off > SLIGHT and off > SLIGHT_SHARE * (case.call.data + case.call.output)
