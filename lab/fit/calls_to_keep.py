"""Which measured calls of convolutions have to be kept: what neither the trees nor their neighbours tell."""

from __future__ import annotations

from statistics import median
from typing import Dict, Iterator, Mapping, Sequence, Tuple

from lab.fit.workspace_files import make_measured
from lab.probe.measured_calls import MeasuredCall
from slurm_gpumem.estimators.workspaces.convolutions import Call, Forest, base_bytes, features, same_law
from slurm_gpumem.estimators.workspaces.measured_calls import Measured, call_mark, halfway

SLIGHT, SLIGHT_SHARE = 512 << 10, 0.01
"""Bytes, and share of input and output, by which an answer may be off."""


def to_keep(calls: Sequence[MeasuredCall], forests: Mapping[str, Forest]) -> Measured:
    """What is known of these calls, and what of it neither the trees nor calls at other batch sizes tell.

    First what others are told by: powers of two, and halfway between those that differ.
    """
    by_mark = {call_mark(each.call.convolution, each.call.rows): each for each in calls}
    halves = set(_turning(by_mark))
    first, others = [], []
    for mark, each in by_mark.items():
        rows = each.call.rows
        if mark in halves or rows & (rows - 1) == 0:
            if mark in halves or _wrong(each, _by_trees(each.call, forests)):
                first.append(each)
        else:
            others.append(each)
    points = _measured(calls, first)
    kept = [each for each in others if _wrong(each, _told(each.call, points, forests))]
    return _measured(calls, [*first, *kept])


def _measured(known: Sequence[MeasuredCall], kept: Sequence[MeasuredCall]) -> Measured:
    return make_measured(
        ((each.call.convolution, each.call.rows) for each in known),
        ((each.call.convolution, each.call.rows, each.bytes) for each in kept),
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


def _told(call: Call, points: Measured, forests: Mapping[str, Forest]) -> float:
    """What an estimate would be told of a call that is not kept."""
    near = points.neighbours(call.convolution, call.rows)
    if near is not None:
        low, high = (_point(Call(call.convolution, rows), points, forests) for rows in near)
        told = same_law(low, high, call)
        if told is not None:
            return told
    return _by_trees(call, forests)


def _point(call: Call, points: Measured, forests: Mapping[str, Forest]) -> Tuple[Call, int]:
    kept = points.bytes_at(call.convolution, call.rows)
    return call, int(_by_trees(call, forests)) if kept is None else kept


def _by_trees(call: Call, forests: Mapping[str, Forest]) -> float:
    return median(forests[call.convolution.call].answers(features(call), base_bytes(call)))


def _wrong(each: MeasuredCall, told: float) -> bool:
    off = abs(told - each.bytes)
    return off > SLIGHT and off > SLIGHT_SHARE * (each.call.data + each.call.output)
