"""A trace as an older PyTorch would have run it: changed by the rules of `estimators.job.versions`."""

from __future__ import annotations

from collections import Counter
from typing import Counter as CounterOf
from typing import List, Set, Tuple

from slurm_gpumem.estimators.job.optimizers import OPTIMIZER_RULES
from slurm_gpumem.estimators.job.versions import (
    FOREACH,
    FUSED_ATTENTION,
    GRADIENTS_FREED,
    VersionRule,
    follows,
)
from slurm_gpumem.summaries.trace_types import Trace

_FUSED = "aten::_scaled_dot_product_"


def in_version(trace: Trace, torch: str) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace for another PyTorch than the one that traced, and warnings of what it cannot show."""
    if not _becomes_older(GRADIENTS_FREED, trace, torch):
        return trace, ()
    from slurm_gpumem.estimators.explain.changes import without_foreach

    changed = keeping_gradients(trace)
    rule = OPTIMIZER_RULES.get(trace.job.optimizer)
    if rule is not None and rule.by_pytorch and _becomes_older(FOREACH, trace, torch):
        changed = without_foreach(changed)
    warnings: Tuple[str, ...] = ()
    if lacks_attention(trace, torch):
        warnings = (
            f"the trace has fused attention kernels, which PyTorch {torch} does not have: there the whole "
            "attention matrices come on top. From a summary, --estimator corrected counts them",
        )
    return changed._replace(job=changed.job._replace(torch=torch)), warnings


def lacks_attention(trace: Trace, torch: str) -> bool:
    """Whether the trace has attention in one kernel where that version holds whole matrices."""
    return _becomes_older(FUSED_ATTENTION, trace, torch) and any(
        site.operator.startswith(_FUSED) for site in trace.sites
    )


def _becomes_older(rule: VersionRule, trace: Trace, torch: str) -> bool:
    return follows(rule, trace.job.torch) and not follows(rule, torch)


def keeping_gradients(trace: Trace) -> Trace:
    """Gradients stay from the first step on; later ones are added to them and are gone."""
    from slurm_gpumem.estimators.explain.changes import BACKWARD
    from slurm_gpumem.estimators.explain.stream import Event, Stream

    stream = Stream(trace)
    released = stream.released_at()
    kept: CounterOf[int] = Counter()
    """Gradients that stay, by site: two layers of one module may share it."""
    seen: CounterOf[Tuple[int, int]] = Counter()
    forget: Set[int] = set()
    passing: Set[int] = set()
    for event in stream.events:
        if event.site is None or event.phase != BACKWARD:
            continue
        end = released.get(event.block)
        lasting = end is None or stream.events[end].step != event.step
        if stream.sites[event.site].category != "gradients" or not lasting:
            continue
        seen[event.step, event.site] += 1
        forget.add(event.block)
        if seen[event.step, event.site] > kept[event.site]:
            kept[event.site] += 1
        else:
            passing.add(event.block)
    changed: List[Event] = []
    for event in stream.events:
        if event.site is None and event.block in forget:
            continue
        changed.append(event)
        if event.site is not None and event.block in passing:
            changed.append(Event(event.block, None, event.phase, event.step))
    stream.events = changed
    return stream.trace()
