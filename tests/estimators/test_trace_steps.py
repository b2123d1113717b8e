"""Steps beyond those of a trace."""

from __future__ import annotations

from typing import List, Sequence

from slurm_gpumem.estimators.allocator.allocator import CachingAllocator
from slurm_gpumem.estimators.traced.replay import allocator_events, further_step, replay
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from slurm_gpumem.units import MIB

ACTIVATION, GRADIENT, STATE = range(3)


def made_of(sizes: Sequence[int], steps: Sequence[List[int]]) -> Trace:
    """A trace whose sites take these numbers of MiB; each step is one phase."""
    sites = tuple(
        Site(bytes=(size * MIB,), operator=f"operator {number}", module="", category="activations")
        for number, size in enumerate(sizes)
    )
    events: List[int] = []
    phases = [Phase(0, "setup", 0)]
    for number, step in enumerate(steps, 1):
        phases.append(Phase(len(events), "forward", number))
        events += step
    return Trace(TracedJob(batch=1), "meta", sites, tuple(events), tuple(phases))


def trace_of(steps: Sequence[List[int]]) -> Trace:
    """Steps of a small training."""
    return made_of((8, 24, 32), steps)


FIRST = [ACTIVATION, GRADIENT, -2, STATE]
"""The activation goes, the gradient stays, and the optimizer makes its state."""
SECOND = [-2, ACTIVATION, GRADIENT, -2]
"""The gradient of the first step, two allocations ago, goes first."""


def test_a_step_after_the_last_releases_what_that_one_left() -> None:
    # In the third step no state was made since: the gradient is the last allocation.
    assert further_step(trace_of([FIRST, SECOND])) == [-1, ACTIVATION, GRADIENT, -2]


def test_steps_that_repeat_go_on_as_they_are() -> None:
    third = [-1, ACTIVATION, GRADIENT, -2]
    assert further_step(trace_of([FIRST, SECOND, third])) == third


def test_nothing_follows_from_a_single_step() -> None:
    assert further_step(trace_of([FIRST])) is None


def test_nothing_follows_where_something_older_is_released() -> None:
    third = [-1, ACTIVATION, GRADIENT, -2]
    state_of_the_first = -5
    assert further_step(trace_of([FIRST, SECOND, [*third, state_of_the_first]])) is None


def test_nothing_follows_where_a_step_keeps_more_than_it_releases() -> None:
    assert further_step(trace_of([FIRST, [ACTIVATION, GRADIENT]])) is None


def test_nothing_follows_where_the_last_step_released_what_the_next_would() -> None:
    trace = made_of((8, 24), [[0], [-1, 0, -1, 1]])
    assert further_step(trace) is None
    assert replay(trace).stats.peak_allocated == 24 * MIB


def test_growth_after_the_last_step_counts() -> None:
    """Four blocks a step, the last of them released after the next step has taken its own."""
    first, second = [0, -1, 1, 2, 3, -3, -1], [0, -1, 1, 2, 3, -6, -3, -1]
    trace = made_of((40, 24, 30, 12), [first, second])
    allocator = CachingAllocator()
    allocator.replay(allocator_events(trace, None, None))
    assert allocator.stats().peak_reserved == 100 * MIB
    found = replay(trace)
    assert found.stats.peak_reserved == 152 * MIB
    assert found.stats.peak_allocated == allocator.stats().peak_allocated
