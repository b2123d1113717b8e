"""Autotuning: what PyTorch reserves at most while cuDNN times algorithms (`torch.backends.cudnn.benchmark`).

A convolution is tried when it is met for the first time, beside what lives then, and after each try PyTorch
gives all cached memory back: allocation events that were recorded on an H200 show both, and the peaks of
measured runs follow from it (`python -m lab.score.tries`). That each thread keeps its own choices, so that
what a checkpoint computes again in the backward pass is tried again there, is not measured.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator, Event
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.estimators.workspaces.benchmark import skipped_bytes, tried_bytes
from slurm_gpumem.summaries.trace_types import Convolution, Trace, evaluate
from slurm_gpumem.units import MIB

_Key = Tuple[bool, int, Convolution]


def play_autotuning(
    trace: Trace, batch: int, events: Sequence[Event], gpu: Optional[Gpu], allocator: CachingAllocator
) -> int:
    """Play a trace's events, as `events` has them, into a fresh allocator, with all that cuDNN times.

    The result is what would be allocated at most if cuDNN tried what it was not seen to try; 0 without any.
    """
    room = None if gpu is None else (gpu.memory_mib - gpu.context_mib) * MIB
    begin = unknown = 0
    for at, convolution in _first_calls(trace, batch):
        allocator.replay(events[begin:at])
        begin = at
        live = allocator.stats().allocated
        # PyTorch leaves out what does not fit beside the job.
        tried = max(tried_bytes(convolution, batch), events[at][1])
        if room is None or live + tried <= room:
            allocator.replay([("tried", tried), ("tried", FREE)])
        allocator.give_back()
        skipped = skipped_bytes(convolution, batch)
        if skipped and (room is None or live + skipped <= room):
            unknown = max(unknown, live + skipped)
    allocator.replay(events[begin:])
    return unknown


def _first_calls(trace: Trace, batch: int) -> Iterator[Tuple[int, Convolution]]:
    """Events at which a convolution of a new shape begins, and that convolution."""
    seen: Set[_Key] = set()
    keys: Dict[int, Tuple[int, Convolution]] = {}
    backward = _backward(trace)
    for at, site in enumerate(trace.events):
        convolution = trace.sites[site].convolution if site >= 0 else None
        if convolution is None:
            continue
        if site not in keys:
            keys[site] = (evaluate(convolution.batch, batch), convolution._replace(batch=()))
        key = (backward[at], *keys[site])
        if key not in seen:
            seen.add(key)
            yield at, convolution


def _backward(trace: Trace) -> List[bool]:
    """Of each event, whether it is part of a backward pass, which has a thread of its own."""
    marks = [False] * len(trace.events)
    ends = [phase.event for phase in trace.phases[1:]] + [len(marks)]
    for phase, end in zip(trace.phases, ends):
        if phase.name == "backward":
            marks[phase.event : end] = [True] * (end - phase.event)
    return marks
