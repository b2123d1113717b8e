"""Put the parts together: from a summary with a trace to an `Estimate`."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Counter as CounterOf
from typing import Dict, List, Set, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings
from slurm_gpumem.estimators.margin import (
    REFERENCE_CONTEXT_MIB,
    TRACE,
    request_at,
    trace_spread,
    unfinished_factor,
)
from slurm_gpumem.estimators.margin import packaged as margins
from slurm_gpumem.estimators.traced.replay import Timeline, replay
from slurm_gpumem.estimators.types import (
    OPTIMIZER_RULES,
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    Estimate,
    Gpu,
    Margin,
    TrainingJob,
)
from slurm_gpumem.estimators.versions import FOREACH, FUSED_ATTENTION, GRADIENTS_FREED, VersionRule, follows
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

# A trace as an older PyTorch would have run it: changed by the rules of `estimators.versions`.

_FUSED = "aten::_scaled_dot_product_"


def in_version(trace: Trace, torch: str) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace for another PyTorch than the one that traced, and warnings of what it cannot show."""
    if not _becomes_older(GRADIENTS_FREED, trace, torch):
        return trace, ()
    from slurm_gpumem.estimators.traced.changes import without_foreach

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
    from slurm_gpumem.estimators.traced.changes import BACKWARD, Event, Stream

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


_PART_OF = {
    "weights": "weights",
    "buffers": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "inputs": "activations",
    "activations": "activations",
    "workspace": "workspace",
}
AUTOTUNING_MARGIN = 1.1
"""What requests allow for, times what cuDNN tries by the rule: other algorithms, half-full segments."""
VARIED_FACTOR = 1.3
"""What the request of a job whose batches have many shapes is multiplied by, without context: as much as the
worst of 22 such scripts took (`python -m lab.fit.unfinished` prints them)."""
LARGER_SCALE = (1.5, 1.5, 1.5)
"""By precision: on a GPU whose cuDNN choices nobody measured requests hold with workspaces half as large
again. A replay shows which models depend on them and how much (docs/admin/calibrate.md has figures)."""
_TRIED = (
    "the job sets cudnn.benchmark: cuDNN then tries algorithms with large workspaces, for which the request "
    "has room; without it the job asks for less"
)
_NOT_TRIED = (
    "cudnn.benchmark: without room for the workspaces that cuDNN only tries; the nodes limit the job's "
    "memory, and PyTorch leaves out what does not fit"
)
_WAYS = {
    "meta": "traced on meta tensors",
    "real": "traced by a small real run on the CPU: the model refused meta tensors",
}


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory, from the trace in the summary."""
    trace = summary.trace
    if trace is None:
        raise UsageError("this summary has no trace; `gpumem summarize` makes one from the model's code")
    trace, warnings = in_version(trace, job.torch)
    assumed: Tuple[str, ...] = ()
    if trace.benchmark:
        from slurm_gpumem.config.node import site_limits_jobs  # few jobs set it, and the table is a large one

        if site_limits_jobs():
            trace, assumed = trace._replace(benchmark=False), (_NOT_TRIED,)
        else:
            warnings = (*warnings, _TRIED)
    if job.gpus > 1:
        from slurm_gpumem.estimators.traced.changes import rank_trace

        trace, more = rank_trace(trace, job.gpus)
        assumed = (*assumed, *more)
    found = estimate_trace(trace, job, gpu, (*summary.warnings, *warnings))
    return found._replace(assumptions=(*assumed, *found.assumptions))


def estimate_trace(trace: Trace, job: TrainingJob, gpu: Gpu, warnings: Tuple[str, ...] = ()) -> Estimate:
    """The estimate from a trace on one GPU."""
    settings = allocator_settings(job.alloc_conf)
    timeline = replay(trace, job.batch_size, gpu, settings)
    context = gpu.context_for(conv=trace.uses_conv, matmul=trace.uses_matmul)
    parts = _with_autotuning(parts_of(timeline, context), timeline, context)
    peak = sum(parts.values())
    margin = margins()[TRACE]
    moved = context - REFERENCE_CONTEXT_MIB
    least = round(timeline.autotuned * AUTOTUNING_MARGIN / MIB) + context if timeline.autotuned else 0
    spread = trace_spread(parts["weights"] + parts["optimizer"], peak - moved)
    requests = tuple(
        max(least, peak, ceil(at) + moved)
        for at in margin.requests(float(peak - moved), job.batch_size, spread)
    )
    if trace.unfinished or (trace.varied and not settings.expandable):
        factor = unfinished_factor() if trace.unfinished else VARIED_FACTOR
        requests = tuple(context + ceil((one - context) * factor) for one in requests)
    if timeline.unseen_autotuning > (max(requests) - context) * MIB:
        warnings = (*warnings, _unseen_autotuning(timeline))
    larger = 0
    if trace.uses_conv and not gpu.workspaces_measured:
        wider = replay(trace, job.batch_size, gpu._replace(workspace_scale=LARGER_SCALE), settings)
        larger = max(0, wider.stats.peak_reserved - timeline.stats.peak_reserved) // MIB
    return Estimate(
        peak_mib=peak,
        request_mib=request_at(requests, margin.coverage),
        floor_mib=peak - parts["fragmentation"],
        parts=parts,
        estimator="trace",
        gpu=gpu.name,
        job=job,
        warnings=(*warnings, *_warnings(trace, job)),
        assumptions=(_WAYS[trace.way], *trace.remarks),
        margin=Margin(margin.coverage, requests, TRACE, workspace_mib=larger),
    )


def parts_of(timeline: Timeline, context: int) -> Dict[str, int]:
    """MiB by part, summing to what is reserved and the context."""
    found = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "workspace"), 0)
    for category, size in timeline.at_peak.items():
        found[_PART_OF[category]] += size
    parts = {name: round(size / MIB) for name, size in found.items()}
    parts["fragmentation"] = max(0, round(timeline.stats.peak_reserved / MIB) - sum(parts.values()))
    parts["context"] = context
    return parts


def _with_autotuning(parts: Dict[str, int], timeline: Timeline, context: int) -> Dict[str, int]:
    """The parts while cuDNN times algorithms: other workspaces, and less that is reserved beside them."""
    if not timeline.autotuned:
        return parts
    moved = round(timeline.autotuned / MIB) + context - sum(parts.values())
    fragmentation = max(0, parts["fragmentation"] + min(0, moved))
    return {**parts, "workspace": parts["workspace"] + max(0, moved), "fragmentation": fragmentation}


def _unseen_autotuning(timeline: Timeline) -> str:
    largest = timeline.unseen_autotuning / (MIB << 10)
    return (
        "cudnn.benchmark: cuDNN may try workspaces here that are larger than any measured one, "
        f"up to {largest:.0f} GiB for the job. They are not in the request; PyTorch goes on without them "
        "where they do not fit. Set torch.backends.cudnn.benchmark = False, or let one run be measured: "
        "gpusbatch without --trace"
    )


def _warnings(trace: Trace, job: TrainingJob) -> Tuple[str, ...]:
    found: List[str] = []
    traced = trace.job
    if job.batch_size != traced.batch and not trace.scalable:
        found.append(f"the trace holds for batch size {traced.batch} only; trace again for another")
    if job.precision != traced.precision and {job.precision, traced.precision} != {"fp32", "tf32"}:
        found.append(f"traced with {traced.precision}, not {job.precision}; trace again for it")
    # An optimizer without a rule of ours is in the trace as it is; the job's is then the default.
    named = traced.optimizer in OPTIMIZERS or job.optimizer != USUAL_OPTIMIZER
    if traced.optimizer and named and job.optimizer != traced.optimizer:
        found.append(f"traced with {traced.optimizer}, not {job.optimizer}; trace again for it")
    for what, wanted, had in (
        ("activation checkpointing", job.checkpointing, traced.checkpointing),
        ("gradient accumulation", job.grad_accumulation > 1, traced.grad_accumulation > 1),
        ("channels_last", job.channels_last, traced.channels_last),
    ):
        if wanted != had:
            before, now = ("with", "without") if had else ("without", "with")
            found.append(f"traced {before} {what}; trace again {now} it")
    return tuple(found)
