"""A submission as text for people and as JSON: what was estimated, what is asked for, and why."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from slurm_gpumem.submission.plan import NOT_RUN_YET
from slurm_gpumem.submission.share.host import names_cpus
from slurm_gpumem.terminal.say import WIDTH
from slurm_gpumem.text import count, wrapped
from slurm_gpumem.units import format_mib

if TYPE_CHECKING:
    # Part of every submission: what a job does not need is not loaded for its types alone.
    from slurm_gpumem.estimators.types import Estimate
    from slurm_gpumem.submission.decision import Decision
    from slurm_gpumem.submission.plan import Plan
    from slurm_gpumem.submission.share.activity import Activity
    from slurm_gpumem.submission.share.request import GpuRequest

SCHEMA = "gpumem-submit/1"


def submission_line(plan: Plan) -> str:
    """What was estimated and what is asked for, on a line for stderr; behind it, what to know of that."""
    if plan.asked.goes_unchanged:
        return plan.asked.goes_unchanged
    estimate, request = plan.largest.estimate if plan.largest else None, plan.request
    if plan.at_once is not None:
        return (
            f"{plan.script_name}: its GPU memory is not known, so one task runs first on a whole GPU and is "
            "measured\nthe others wait for it (JobArrayTaskLimit), then share by what it took"
        )
    if plan.kept_because == NOT_RUN_YET:
        ours = f"gpu{plan.asked.raw.program} " if plan.asked.raw.plain else ""
        return (
            f"{plan.script_name}: its GPU memory is not known, so it keeps its whole GPU and is measured for "
            f"the next time\n{ours}--trace would share this one"
        )
    words = [_estimated(plan, estimate)] if estimate else []
    details = _details(plan, estimate)
    if request is None:
        words.append(f"{_kept(plan)}: {plan.kept_because}")
    elif request.whole_gpu:
        words.append(f"asking for a whole GPU ({request.gres}): {request.reason}")
    else:
        words.append(_asking(plan, request, by_hand=estimate is None))
    pieces = [" ".join(words)] if len(" ".join(words)) <= WIDTH else words
    pieces += [details] if details else []
    return "\n".join(line for piece in pieces for line in wrapped(piece, WIDTH))


def _asking(plan: Plan, request: GpuRequest, *, by_hand: bool) -> str:
    """The share, by what memory and the job's load on the GPU ask for: what is less would make it fewer."""
    activity = plan.largest.activity if plan.largest else None
    if activity is None or activity.utilization is None or not request.memory_units:
        asking = f"asking for {format_mib(plan.reserved_mib).replace('.0 ', ' ')} ({request.reason})"
        whose = " as the site sets for first runs" if plan.workload.script else " as given by hand"
        return asking + (whose if by_hand else "")
    busy, source = f"{activity.utilization.sm_active:.0f} % busy", activity.utilization.source
    known = {"assumed": f" (not measured yet: {busy})", "remembered": f" ({busy} in earlier runs)"}
    load = f"{request.activity_units} for GPU load{known.get(source, '')}"
    asking = f"asking for {request.reason}: {request.memory_units} for memory, {load}"
    may_wait = request.activity_units > request.memory_units and activity.because == "tolerance"
    return f"{asking} (fewer with --max-slowdown above {activity.limit:g})" if may_wait else asking


def _kept(plan: Plan) -> str:
    """What a job has whose own GPU options stay."""
    gpus = plan.asked.gpus.gpus
    if not gpus or (plan.largest is None and not plan.guess):
        return f"goes to {plan.asked.raw.program} as it is"
    return f"keeps its {gpus} whole GPUs" if gpus > 1 else "keeps its whole GPU"


def _details(plan: Plan, estimate: Optional[Estimate]) -> str:
    """Where the estimate is known from, how much slower the job may be; "" where there is nothing to say."""
    known, request = "", plan.request
    if estimate is not None and not plan.workload.script:
        from slurm_gpumem.estimators.remembered import NAME

        known = estimate.assumptions[0] if estimate.estimator == NAME and estimate.assumptions else ""
    shared = request is not None and not request.whole_gpu
    cost = _may_be_slower(plan) if shared else ""
    return "; ".join(filter(None, (known, _fewer_cpus(plan), cost)))


def _fewer_cpus(plan: Plan) -> str:
    """That it gets fewer CPUs than its share has, since earlier runs used fewer."""
    host, options = plan.host, plan.asked.options
    if host.cpus_used is None or options.any_of("cpus-per-gpu"):
        return ""
    return f"{count(host.cpus, 'CPU')} of {host.cpus_by_share}: earlier runs used {host.cpus_used:.1f}"


def _may_be_slower(plan: Plan) -> str:
    """What sharing may cost the job, where its activity is known."""
    largest, request = plan.largest, plan.request
    if largest is None or largest.activity is None or request is None or not request.per_gpu:
        return ""
    share = request.units / request.per_gpu
    worst, usual = largest.activity.worst(share), largest.activity.usual(share)
    if worst is None or worst < 1.05:
        return ""
    return f"expected slowdown while sharing {usual:.1f}x, worst case {worst:.1f}x"


def explain_submission(plan: Plan) -> List[str]:
    """Where the memory goes, what would change it, and what decided the share."""
    largest, summary, policy = plan.largest, plan.workload.summary, plan.asked.config.sharing
    if largest is None:
        return [f"gpumem: nothing to explain: {plan.reason}"]
    if largest.estimate is None or summary is None:
        return ["gpumem: nothing to explain: the GPU memory was given by hand"]

    from slurm_gpumem.estimators import registry
    from slurm_gpumem.estimators.largest import alternatives
    from slurm_gpumem.report.explained import explain_lines, utilization_lines

    estimate, gpu = largest.estimate, largest.gpu
    other = alternatives(estimate, gpu, registry.same_way(estimate, summary, gpu), policy.shard_mib)
    named = summary if summary.name else summary._replace(name=plan.model_name)
    lines = explain_lines(named, estimate, gpu, other, policy.shard_mib) + utilization_lines(estimate)
    request = plan.request
    if request is not None and request.units and not request.whole_gpu:
        unit = "mps units" if policy.gres == "mps" else "shards"
        if largest.activity is None and estimate.no_utilization:
            lines.append("share: by memory; its activity is unknown")
        else:
            lines += _share_lines(largest.activity, request.memory_units, request.activity_units, unit)
    return [*lines, *_cpu_lines(plan)]


def _cpu_lines(plan: Plan) -> List[str]:
    """Where the number of CPUs comes from, with a share of a GPU."""
    host, options = plan.host, plan.asked.options
    if not host.cpus:
        return []
    if options.any_of("cpus-per-gpu") or names_cpus(options):
        return ["CPUs: as its own options say"]
    if host.cpus_used is None:
        return [f"CPUs: {host.cpus}, in proportion to its share; no earlier run used fewer"]
    return [
        f"CPUs: {host.cpus}, since earlier runs kept {host.cpus_used:.1f} busy in 95 % of their busy time; "
        f"its share has {host.cpus_by_share}"
    ]


def submission_json(decision: Decision) -> Dict[str, Any]:
    """A decision for --json."""
    from slurm_gpumem.report.estimate_json import utilization_json

    estimate = decision.estimate
    return {
        "schema": SCHEMA,
        "command": list(decision.argv),
        "warnings": list(decision.warnings),
        "peak_mib": decision.peak_mib,
        "request_mib": decision.request_mib,
        "floor_mib": estimate.floor_mib if estimate else None,
        "parts": dict(estimate.parts) if estimate else None,
        "estimator": estimate.estimator if estimate else None,
        "gpu": estimate.gpu if estimate else None,
        "shards": decision.shards,
        "shards_per_gpu": decision.shards_per_gpu,
        "shards_by_memory": decision.shards_by_memory,
        "shards_by_activity": decision.shards_by_activity,
        "max_slowdown": decision.max_slowdown,
        "utilization": utilization_json(estimate.utilization) if estimate else None,
        "gres": decision.gres,
        "instance_mib": decision.instance_mib,
        "whole_gpu": decision.whole_gpu,
        "reason": decision.reason,
        "unfinished": decision.unfinished or None,
        "cpus": decision.cpus,
        "cpus_by_share": decision.cpus_by_share,
        "host_memory_mib": decision.host_memory_mib,
    }


def _estimated(plan: Plan, estimate: Estimate) -> str:
    summary = plan.workload.summary
    if summary is None:
        return f"{plan.script_name}, {estimate.assumptions[0]},"
    from slurm_gpumem.estimators.training_job import describe_estimated
    from slurm_gpumem.terminal.bars import speaks_unicode

    arrow = "→" if speaks_unicode(sys.stderr) else "->"
    peak = format_mib(estimate.peak_mib)
    job = describe_estimated(summary, estimate)
    if plan.workload.batch_from:
        job = job.replace(",", f" ({plan.workload.batch_from}),", 1)
    return f"{_source(plan)}, {job} {arrow} peak {peak},"


def _source(plan: Plan) -> str:
    """Where the model comes from."""
    trace, model = plan.asked.traced, plan.asked.settings.model
    if trace is not None:
        how = "traced before" if trace.cached else f"traced in {trace.traced.seconds:.0f} s"
        how += f", not to its end: {plan.unfinished}" if plan.unfinished else ""
        return f"{os.path.basename(trace.run.name)} ({how}): {trace.summary.name or 'model'}"
    return "standard input" if model == "-" else os.path.basename(model or "")


def _share_lines(
    activity: Optional[Activity], memory_units: int, activity_units: int, unit: str
) -> List[str]:
    """Which of memory and activity decided the share, and what the other would have asked for."""
    if activity is None:
        return ["share: by memory; no slowdown limit counts for this job (sharing.max_slowdown)"]
    whose = "the job's own" if activity.by_job else "the site's"
    why = "it takes that much" if activity.because == "pressure" else "it suffers from more beside it"
    larger, smaller = ("activity", "memory") if activity_units > memory_units else ("memory", "activity")
    return [
        f"share: by {larger}, {max(memory_units, activity_units)} {unit}; {smaller} alone: "
        f"{min(memory_units, activity_units)} {unit}",
        f"       {activity.share * 100:.0f} % of the GPU keeps slowdowns within {activity.limit:g} "
        f"({whose} limit): {why}",
    ]
