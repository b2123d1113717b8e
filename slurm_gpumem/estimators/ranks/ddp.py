"""Data parallel (torch.nn.parallel.DistributedDataParallel, PyTorch 2.13): a whole model on every rank.

Gradients are copied into buckets, which are reduced and copied back; with `gradient_as_bucket_view` the
gradients are parts of the buckets and stay from one step to the next. The first step has one bucket for all
of them. Before the second it is replaced by buckets that are filled in the reverse order of the parameters;
one is closed when it has reached its size, 1 MiB for the first one. When the model is wrapped, parameters and
buffers are broadcast through flat copies of at most 250 MiB.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from slurm_gpumem.estimators.explain.stream import Event
from slurm_gpumem.estimators.ranks.model import RankModel
from slurm_gpumem.estimators.ranks.strategy import Strategy
from slurm_gpumem.summaries.trace_types import BUCKET, ddp_buckets
from slurm_gpumem.units import MIB

BROADCAST = 250 * MIB


def replicated(model: RankModel, strategy: Strategy, ranks: int) -> Tuple[str, ...]:
    """Add one rank's buckets; returns what was assumed."""
    del ranks  # every one has all of it
    views = strategy.switch("gradient_as_bucket_view")
    cap = strategy.number("bucket_cap_mb")
    sizes = ddp_buckets([parameter.bytes for parameter in model.trained], cap * MIB)
    events = model.stream.events
    first = next((at for at, e in enumerate(events) if e.phase != "setup"), len(events))
    at = events[max(first - 1, 0)]
    synced = sum(parameter.bytes for parameter in model.parameters)
    flat = model.take(min(synced, BROADCAST), "ddp::broadcast", "workspace", at)
    added = [flat, model.release(flat, at)]
    one = model.take(sum(sizes), BUCKET, "gradients", at)
    second = next((at for at, e in enumerate(events) if e.step > 1), len(events))
    last = events[second - 1]
    rebuilt = [model.release(one, last), *(model.take(size, BUCKET, "gradients", last) for size in sizes)]
    model.stream.events = [*events[:first], *added, one, *events[first:second], *rebuilt, *events[second:]]
    if views:
        _free_copied_gradients(model)
        return ("gradients are views of DDP's buckets",)
    stated = strategy.options["bucket_cap_mb"]
    return (f"gradients beside buckets of {stated} MiB (gradient_as_bucket_view is off)",)


def _free_copied_gradients(model: RankModel) -> None:
    """A gradient goes when its value is in the bucket: when the next one has been computed."""
    written: List[Event] = []
    waiting: Dict[int, Event] = {}
    for event in model.stream.events:
        if event.block in model.gradients:
            if event.allocates:
                written += [Event(block, None, event.phase, event.step) for block in waiting]
                waiting = {event.block: event}
            elif waiting.pop(event.block, None) is None:
                continue
        written.append(event)
    model.stream.events = written
