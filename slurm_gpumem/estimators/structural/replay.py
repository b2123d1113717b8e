"""From a tape to the allocator's events: parameters, then steps of forward, backward and optimizer."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, AllocatorStats, CachingAllocator
from slurm_gpumem.estimators.allocator.allocator_settings import DEFAULTS, AllocatorSettings
from slurm_gpumem.estimators.allocator.tape import Tape
from slurm_gpumem.estimators.structural.stream import (
    BASE,
    FLOWING,
    GRADS,
    OTHER_STEP,
    RANGE,
    STATES,
    WORK,
    Events,
    Stream,
)

_LARGEST = 1 << 42
"""Bytes in all tensors of a step up to which the allocator is simulated byte by byte."""

_AT_ONCE = 2
"""Intermediate results that a formula over one parameter holds: its operand and its result."""


class StepPlan(NamedTuple):
    """What determines a step besides the tape."""

    states: int
    """Copies of the parameters that the optimizer keeps."""
    temporaries: int
    """Copies that its step needs temporarily."""
    cublas_workspace: int
    accumulation: int = 1
    data_parallel: bool = False
    steps: int = 2
    keeps_gradients: bool = False
    """Gradients are set to zero between steps, not released (PyTorch before 2.0)."""
    allocator: AllocatorSettings = DEFAULTS
    foreach: bool = True
    """The optimizer's temporaries exist for all parameters at once."""


class Replay(NamedTuple):
    """The allocator's result for the stream, and what was alive at its peak."""

    stats: AllocatorStats
    at_peak: Dict[int, int]
    """Bytes by category at the moment of peak_allocated."""
    phase: str
    """The phase of the peak: forward, backward or optimizer."""


def replay(tape: Tape, plan: StepPlan) -> Replay:
    """Run `plan.steps` training steps through the caching allocator."""
    events: Events = []
    phases: List[Tuple[int, str]] = [(0, "setup")]
    events += enumerate(tape.params)
    events += enumerate(tape.frozen, len(tape.params))
    if plan.data_parallel:
        events += enumerate(tape.params, GRADS + len(tape.params))
    stream = Stream(tape)
    keep: Events = []
    passes = 0
    for step in range(plan.steps):
        if step and not plan.keeps_gradients:
            events += [(GRADS + index, FREE) for index in range(len(tape.params))]
        for micro in range(min(plan.accumulation, 2)):
            base = BASE + (OTHER_STEP if passes % 2 else 0)
            first = passes == 0
            passes += 1
            phases.append((len(events), "forward"))
            events += [(base + store, tape.sizes[store]) for store in tape.inputs]
            events += [(key, FREE) for key, kind in keep if kind == 0]
            at = len(events) + stream.forward_matmul if stream.forward_matmul >= 0 else -1
            events += [(key + base if key < RANGE else key, size) for key, size in stream.forward]
            # The loop's variable releases the previous step's output when the model returns the new one.
            replaced = [(key, FREE) for key, kind in keep if kind == 1]
            returned = len(events) - len(stream.forward) + stream.returned if stream.returned >= 0 else None
            if returned is None:
                events += replaced
            else:
                events[returned:returned] = replaced
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (WORK + OTHER_STEP, plan.cublas_workspace))
            phases.append((len(events), "backward"))
            at = len(events) + stream.backward_matmul if stream.backward_matmul >= 0 else -1
            if micro or (step and plan.keeps_gradients):
                events += _accumulating(stream.backward, base)
            else:
                events += [(key + base if key < RANGE else key, size) for key, size in stream.backward]
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (WORK + OTHER_STEP + 1, plan.cublas_workspace))
            keep = [(base + store, 0) for store in tape.inputs]
            keep += [(base + store, 1) for store in stream.survivors]
        phases.append((len(events), "optimizer"))
        events += _update(tape.params, plan, first=step == 0)
    stats = _play(events, sum(tape.sizes) + sum(tape.params), plan.allocator)
    phase = [name for start, name in phases if start <= stats.peak_event][-1]
    return Replay(stats, _alive(events, stats.peak_event), phase)


def _play(events: Events, total: int, settings: AllocatorSettings) -> AllocatorStats:
    """Replay; sizes beyond any GPU (a badly guessed input) are simulated at a smaller scale."""
    scale = max(1, total // _LARGEST)
    if scale > 1:
        events = [(key, size // scale if size > 0 else size) for key, size in events]
    allocator = CachingAllocator(settings)
    allocator.replay(events)
    stats = allocator.stats()
    if scale == 1:
        return stats
    return stats._replace(
        **{
            name: getattr(stats, name) * scale
            for name in ("allocated", "reserved", "peak_allocated", "peak_reserved")
        },
    )


def _accumulating(backward: Events, base: int) -> Events:
    """A backward pass whose parameter gradients are added to existing ones."""
    events: Events = []
    for key, size in backward:
        if GRADS <= key < STATES:
            passing = key - GRADS + WORK + FLOWING
            events += [(passing, size), (passing, FREE)]
        else:
            events.append((key + base if key < RANGE else key, size))
    return events


def _update(params: Sequence[int], plan: StepPlan, *, first: bool) -> Events:
    """The optimizer's step: states at the first one, and the temporaries of its foreach operations."""
    events: Events = []
    if first:
        for index, size in enumerate(params):
            events += [(STATES + index * 8 + state, size) for state in range(plan.states)]
    temporaries = list(enumerate(list(params) * plan.temporaries, STATES + OTHER_STEP))
    if not plan.foreach:
        held = range(_AT_ONCE if plan.temporaries else 0)
        for size in params:
            one = [(STATES + OTHER_STEP + number, size) for number in held]
            events += one + [(key, FREE) for key, _ in one]
        return events
    events += temporaries
    # A list releases its members from the last to the first.
    events += [(key, FREE) for key, _ in reversed(temporaries)]
    return events


def _alive(events: Events, last: int) -> Dict[int, int]:
    result = dict.fromkeys(range(5), 0)
    # Only the last event of each key counts.
    for key, size in dict(events[: last + 1]).items():
        if size != FREE:
            result[key // RANGE] += -(-size // 512) * 512
    return result
