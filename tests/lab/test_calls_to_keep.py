"""Which measured calls of convolutions are kept: what an estimate would not be told otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Sequence

from lab.fit.calls_to_keep import to_keep
from lab.probe.measured_calls import MeasuredCall
from slurm_gpumem.estimators.workspaces.convolutions import BASES, Call, Forest
from slurm_gpumem.estimators.workspaces.tree import Tree
from slurm_gpumem.summaries.trace_types import CALLS
from tests.estimators.test_workspaces import convolution

PLAIN = convolution()
DATA = 64 * 56 * 56 * 4
NOTHING = Forest((Tree([-1 - BASES.index("nothing")], [0.0], [0]),), Tree([-1], [0.0], [0]))


def kept(forward: Dict[int, int], rows: int, others: Sequence[int]) -> Optional[int]:
    """Bytes kept of the forward call at a batch size, by trees that say nothing; gradients took nothing."""
    calls: List[MeasuredCall] = [MeasuredCall(Call(PLAIN, n), taken, "") for n, taken in forward.items()]
    calls += [MeasuredCall(Call(replace(PLAIN, call=name), n), 0, "") for name in CALLS[1:] for n in others]
    return to_keep(calls, dict.fromkeys(CALLS, NOTHING)).bytes_at(PLAIN, rows)


def test_what_the_trees_do_not_tell_is_kept() -> None:
    assert kept({16: 16 * DATA}, 16, [16]) == 16 * DATA
    assert kept({16: 0}, 16, [16]) is None


def test_what_neighbours_tell_is_not_kept() -> None:
    assert kept({16: 16 * DATA, 20: 20 * DATA, 32: 32 * DATA}, 20, [16, 32]) is None
    assert kept({16: 16 * DATA, 20: 40 * DATA, 32: 32 * DATA}, 20, [16, 32]) == 40 * DATA


def test_neighbours_that_an_estimate_does_not_know_of_tell_nothing() -> None:
    # The gradients were not measured at 32, so that the convolution is not known there.
    assert kept({16: 16 * DATA, 20: 20 * DATA, 32: 32 * DATA}, 20, [16]) == 20 * DATA


def test_halfway_is_kept_where_its_neighbours_differ() -> None:
    assert kept({16: 0, 24: 0, 32: 32 * DATA}, 24, [16, 32]) == 0
    assert kept({16: 16 * DATA, 24: 24 * DATA, 32: 32 * DATA}, 24, [16, 32]) is None
