"""From the trace of one process to that of one rank under DistributedDataParallel (PyTorch 2.13).

Every rank has the whole model. Gradients are copied into buckets, which are reduced and copied back. The
first step has one bucket for all of them; before the second it is replaced by buckets that are filled in the
reverse order of the parameters, each closed when it has reached its size. When the model is wrapped,
parameters are broadcast through flat copies of at most 250 MiB. NCCL's own memory was measured for a group of
one process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, Mapping, Sequence, Set, Tuple

from slurm_gpumem.estimators.traced.changes import Event, Stream
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.summaries.trace_types import (
    BUCKET,
    BUCKET_CAP,
    NCCL,
    NCCL_FIRST_GROUP,
    PARAMETER,
    Site,
    Trace,
    ddp_buckets,
)
from slurm_gpumem.units import MIB

_BROADCAST = 250 * MIB


@lru_cache(maxsize=16)
def rank_trace(trace: Trace, ranks: int) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace of one of several ranks, and what was assumed."""
    if not any(phase.name == "backward" for phase in trace.phases):
        return trace, ("every GPU holds the whole model",)
    if trace.job.ranks > 1 or any(site.operator == BUCKET for site in trace.sites):
        return trace, ("the script was traced as one of its ranks",)
    return _with_buckets(trace), (
        f"one of {ranks} ranks under DDP: computed, not measured",
        f"gradients beside buckets of {BUCKET_CAP // MIB} MiB (gradient_as_bucket_view is off)",
    )


def with_nccl(found: Estimate) -> Estimate:
    """The estimate of a rank whose buckets were counted from a summary, with NCCL's memory."""
    nccl = NCCL_FIRST_GROUP // MIB
    return found._replace(
        peak_mib=found.peak_mib + nccl,
        request_mib=found.request_mib + nccl,
        floor_mib=found.floor_mib + nccl,
        margin=found.margin._replace(requests=tuple(at + nccl for at in found.margin.requests)),
        parts={**found.parts, "workspace": found.parts["workspace"] + nccl},
    )


def _with_buckets(trace: Trace) -> Trace:
    stream = Stream(trace)
    size = {e.block: stream.site(e).bytes_at(trace.job.batch) for e in stream.events if e.allocates}
    weights = _weights(stream)
    buckets = ddp_buckets(_trained(stream, weights, size), BUCKET_CAP)
    events = stream.events
    first = next((at for at, event in enumerate(events) if event.phase != "setup"), len(events))
    second = next((at for at, event in enumerate(events) if event.step > 1), len(events))
    before, last = events[max(first - 1, 0)], events[second - 1]

    def take(nbytes: int, operator: str, category: str, at: Event) -> Event:
        site = stream.add_site(Site((max(nbytes, 1),), operator, "", category))
        return Event(stream.new_block(site), site, at.phase, at.step)

    def release(taken: Event, at: Event) -> Event:
        return Event(taken.block, None, at.phase, at.step)

    synced = sum(size[weight.block] for weight in weights)
    flat = take(min(synced, _BROADCAST), "ddp::broadcast", "workspace", before)
    whole = take(sum(buckets), BUCKET, "gradients", before)
    has_nccl = any(site.operator == NCCL for site in trace.sites)
    stream.events = [
        *events[:first],
        *([] if has_nccl else [take(NCCL_FIRST_GROUP, NCCL, "workspace", before)]),
        flat,
        release(flat, before),
        whole,
        *events[first:second],
        release(whole, last),
        *(take(bucket, BUCKET, "gradients", last) for bucket in buckets),
        *events[second:],
    ]
    return stream.trace()


def _weights(stream: Stream) -> List[Event]:
    """The allocations of the parameters; traces of earlier versions do not say which weights are some."""
    released = stream.released_at()
    kept = [event for event in stream.events if event.allocates and event.block not in released]
    return [event for event in kept if stream.site(event).operator == PARAMETER] or [
        event for event in kept if stream.site(event).category == "weights"
    ]


def _trained(stream: Stream, weights: Sequence[Event], size: Mapping[int, int]) -> List[int]:
    """Bytes of the parameters that get a gradient, in their order."""
    free: Dict[Tuple[str, int], List[int]] = {}
    for index, weight in enumerate(weights):
        free.setdefault((stream.site(weight).module, size[weight.block]), []).append(index)
    found: Set[int] = set()
    for event in stream.events:
        if not event.allocates or stream.site(event).category != "gradients":
            continue
        # Shared weights: their gradient is added up where they are used last.
        waiting = free.get((stream.site(event).module, size[event.block])) or next(
            (some for (_, other), some in free.items() if other == size[event.block] and some), []
        )
        if waiting:
            found.add(waiting.pop(0))
    return [size[weights[index].block] for index in sorted(found)]
