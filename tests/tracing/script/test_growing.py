"""Calls with ever longer inputs: which are run, and what the others are answered."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import pytest

pytest.importorskip("torch", reason="no PyTorch here")

from slurm_gpumem.tracing.follow.answers import Call, GrowingCalls

MIB = 1 << 20


def _call(batch: int, length: int, live_bytes: int = 0) -> Call:
    return Call("model", ((batch, length),), 0, live_bytes)


def _run(
    calls: Sequence[Call], left: int = 0, growing: Optional[GrowingCalls] = None
) -> List[Tuple[bool, List[Optional[Tuple[int, ...]]]]]:
    """Whether each call was run, and the shapes of its answer: ten scores for each token."""
    growing = growing or GrowingCalls()
    found = []
    for call in calls:
        ((batch, length),) = [shape for shape in call.shapes if shape]
        answer = growing.answer(call, 100 * MIB) if growing.grows(call) else None
        if answer is None:
            growing.ran(call, ((batch, length, 10),), MIB)
        found.append((answer is None, answer or [(batch, length, 10)]))
    return found


def test_a_text_that_grows_is_run_at_some_lengths_and_answered_at_all() -> None:
    lengths = range(100, 300)
    found = _run([_call(4, length) for length in lengths])
    assert [answer for _, answer in found] == [[(4, length, 10)] for length in lengths]
    assert sum(ran for ran, _ in found) < 15


def test_what_collects_is_run_as_it_is() -> None:
    found = _run([_call(4, length, live_bytes=length * MIB) for length in range(10, 60)])
    assert all(ran for ran, _ in found)


def test_a_batch_of_another_size_is_no_step_of_the_same_text() -> None:
    growing = GrowingCalls()
    _run([_call(20, length) for length in range(100, 110)], growing=growing)
    for length in range(104, 110):  # answered from before, so not run now
        growing.grows(_call(22, length))
    found = _run([_call(22, length) for length in range(110, 118)], growing=growing)
    assert [answer for _, answer in found] == [[(22, length, 10)] for length in range(110, 118)]
