"""Fragmentation by batches of many lengths: what PyTorch reserves beyond the few batches that were traced.

A batch that is longer than all before it finds no free block that is large enough: the allocator takes new
segments, and what the shorter ones had is split among smaller tensors and stays. How much is reserved in the
end depends on the order of the lengths, and a trace has seen one order of a few of them. Requests of such
jobs are wider by a constant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict

from slurm_gpumem.estimators.allocator_settings import AllocatorSettings
from slurm_gpumem.summaries.trace_types import Trace, evaluate

MANY_LENGTHS = 5
"""Backward passes of different sizes. Fewer are full batches, a last one that is smaller, and the networks of
a GAN that take turns."""
GROWTH = 0.09
"""Of all that is reserved: the largest growth that development lists of scripts show, rounded up
(lab/fit/fragmentation.py)."""


@lru_cache(maxsize=2)
def varies(trace: Trace) -> bool:
    """Whether a trace that did not come to the script's end has seen batches of many lengths."""
    # Most traces have too few steps; the answer is needed for hundreds of batch sizes then.
    if trace.finished or trace.phases[-1].step <= MANY_LENGTHS:
        return False
    taken: Dict[int, int] = {}
    sizes = [evaluate(site.bytes, trace.job.batch) for site in trace.sites]
    ends = [phase.event for phase in trace.phases[1:]] + [len(trace.events)]
    for phase, end in zip(trace.phases, ends):
        if phase.name == "backward" and phase.step > 1:  # the first one makes what stays
            made = sum(sizes[value] for value in trace.events[phase.event : end] if value >= 0)
            taken[phase.step] = taken.get(phase.step, 0) + made
    return len(set(taken.values())) >= MANY_LENGTHS


def fragmentation_mib(trace: Trace, reserved: int, settings: AllocatorSettings) -> int:
    """What a request adds to what the trace reserves; expandable segments do not fragment."""
    return round(GROWTH * reserved) if not settings.expandable and varies(trace) else 0
