"""What `gpusbatch --trace` does before it decides: trace the script, then go on as with a model's summary."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import NotEstimatedError, TargetError, UsageError
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.slurm.state.queue import array_tasks
from slurm_gpumem.slurm.submit.gpu_options import ArrayTask
from slurm_gpumem.slurm.submit.sbatch import SALLOC, SBATCH
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.candidate_gpus import find_candidates
from slurm_gpumem.submission.job.sharded_jobs import why_not_estimated
from slurm_gpumem.submission.job_trace import cache
from slurm_gpumem.submission.job_trace.batch_script import Progress, ScriptRun, script_run, trace_script
from slurm_gpumem.submission.job_trace.result import Trace
from slurm_gpumem.submission.job_trace.trace_job import (
    TRACE_CPUS,
    Deferred,
    deferred_trace,
    whole_until_traced,
)
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.submission import Submission
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.text import count
from slurm_gpumem.tracing.script.run import AS_FREE, Limits

_MOST_TASKS = 64


class AfterTrace(NamedTuple):
    """The submission with its trace, and what its user should know."""

    asked: Submission
    notes: Tuple[str, ...] = ()
    deferred: Optional[Deferred] = None
    """A trace that is yet to be made, by a job before this one ..."""
    plan: Optional[Plan] = None
    """... and what this one asks for until then."""


def with_trace(asked: Submission, progress: Progress, *, here: bool = False) -> AfterTrace:
    """Trace the job's script, which then says what the job needs. TargetError when it cannot be traced.

    `here`: on this machine, even where the site's traces are made in jobs.
    """
    if os.geteuid() == 0:
        raise UsageError(
            "a trace runs the script on this machine; that is refused for root.\n"
            "Submit as the user whose job it is, or give the memory with --gpu-mem."
        )
    if asked.config.trace.where == "off":
        raise UsageError("this site traces no scripts (trace.where in gpumem.toml); use --model or --gpu-mem")
    if asked.raw.program == SALLOC and not asked.command:
        raise UsageError("salloc without a command has nothing to trace: use --model or --gpu-mem")
    unknown = why_not_estimated(asked)
    if unknown:
        return AfterTrace(asked._replace(trace=False, not_estimated=unknown))
    untraced = why_not_traced(asked)
    if untraced:
        return AfterTrace(asked._replace(trace=False, goes_unchanged=f"not traced: {untraced}"))
    candidates = find_candidates(asked)
    if candidates.empty or candidates.whole_nodes:
        why = candidates.empty or f"partition {candidates.whole_nodes} gives whole nodes"
        return AfterTrace(asked._replace(trace=False, goes_unchanged=f"not traced: {why}"))
    gpu = max(candidates.gpus, key=lambda gpu: gpu.memory_mib)
    if asked.config.trace.where == "job" and not here:
        if asked.raw.program != SBATCH:
            raise UsageError(
                "this site traces in jobs (trace.where), before which nothing interactive can wait: "
                "use --model or --gpu-mem"
            )
        runs = _runs(asked, gpu)[0]
        if any(cache.known(run) is None for run in runs):
            whole = whole_gpu_instead(asked)
            plan = whole_until_traced(whole, candidates)
            if not plan.shared:
                why = "not traced: no GPU in its reach has shards"
                return AfterTrace(asked._replace(trace=False, goes_unchanged=why))
            data = job_script(asked)[1]
            return AfterTrace(whole, (), deferred_trace(asked, data, len(runs)), plan)
    try:
        trace, notes = largest_trace(asked, gpu, progress, in_job=here)
    except NotEstimatedError as error:
        return AfterTrace(asked._replace(trace=False, not_estimated=error.why))
    except TargetError as error:
        return _instead(asked, error)
    return AfterTrace(asked._replace(trace=False, traced=trace), (*notes, *_of_ranks(trace)))


def why_not_traced(asked: Submission) -> str:
    """Why a trace would change nothing for this job; "" where it would."""
    if asked.gpus.keep_whole and asked.gpus.total < 2:  # several GPUs get a verdict
        return f"{asked.gpus.keep_whole}, so it keeps its GPUs"
    if asked.gpus.shared_gres:
        return f"its own --gres={asked.gpus.shared_gres} stays"
    return ""


def largest_trace(
    asked: Submission, gpu: Gpu, progress: Progress, *, in_job: bool = False
) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace of the job, of an array the one that needs most; and notes. A job has CPUs of its own."""
    runs, chosen, notes = _runs(asked, gpu)
    found = [one_trace(run, _limits(asked, in_job=in_job), gpu, progress) for run in runs]
    if len(found) > 1:
        notes.append(_of_tasks(chosen, found))
    largest = max(found, key=lambda trace: trace.estimate.request_mib) if len(found) > 1 else found[0]
    for trace in found:
        notes += [*trace.traced.notes]
    if largest.traced.facts.get("grown_bytes", 0) >= 1 << 20:
        grown = largest.traced.facts["grown_bytes"] >> 20
        notes.append(f"its memory grows by {grown:,} MiB over the traced steps: something is kept")
    return largest, tuple(dict.fromkeys(notes))


def _runs(asked: Submission, gpu: Gpu) -> Tuple[List[ScriptRun], List[Optional[ArrayTask]], List[str]]:
    """The runs to trace, their tasks, and what to say of the choice."""
    name, data = job_script(asked)
    chosen, notes = _tasks(asked, data)
    args = () if asked.command else asked.raw.line.script_args
    return [script_run(name, data, args, asked.options, gpu, task) for task in chosen], chosen, notes


def one_trace(run: ScriptRun, limits: Limits, gpu: Gpu, progress: Progress) -> Trace:
    """A run's trace: kept from earlier, else made now and kept."""
    traced = cache.known(run)
    cached = traced is not None
    if traced is None:
        started = time.time()
        traced = trace_script(run, limits, progress)
        problem = cache.keep(run, traced, started)
        if problem:
            traced = replace(traced, notes=(*traced.notes, problem))
    # Read as the cluster will: the process ran somebody's code, and nothing of it is believed unseen.
    summary = read_summary(traced.summary.decode(errors="replace"))
    return Trace(run, traced, summary, gpu, cached)


def _of_ranks(trace: Trace) -> Tuple[str, ...]:
    """What the trace of one of several ranks does not say."""
    gpus, ranks = trace.run.gpus, trace.traced.ranks
    nodes = int(trace.run.environment.get("SLURM_NNODES") or 1)
    idle = f"the script works with {count(ranks, 'GPU')} of the {gpus} that it asks for"
    notes = [idle] if ranks < gpus else []
    if ranks > 1 and nodes > 1:
        notes.append(f"its ranks are on {nodes} nodes: the first was traced, and nothing was sent")
    return tuple(notes)


def whole_gpu_instead(asked: Submission) -> Submission:
    """The submission where the script cannot be traced and its user wants a whole GPU then."""
    return asked._replace(trace=False, settings=asked.settings.on_whole_gpu())


def _instead(asked: Submission, error: TargetError) -> AfterTrace:
    spelled = asked.settings.spelled("trace-or")
    if asked.settings.trace_or != "whole-gpu":
        raise TargetError(f"{error}\nNothing was submitted. Use {spelled} whole-gpu to submit it anyway.")
    return AfterTrace(whole_gpu_instead(asked), notes=(f"not traced: {error}",))


def job_script(asked: Submission) -> Tuple[str, bytes]:
    """The script's name and text; with --wrap the text that sbatch makes of it."""
    script: Optional[BatchScript] = asked.script
    if script is not None:
        return script.name, script.data
    if asked.command:
        import shlex

        return asked.command[0], f"#!/bin/sh\nexec {shlex.join(asked.command)}\n".encode(
            "utf-8", "surrogateescape"
        )
    wrapped = asked.options.get("wrap") or ""
    return "--wrap", f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n".encode(
        "utf-8", "surrogateescape"
    )


def _limits(asked: Submission, *, in_job: bool) -> Limits:
    site = asked.config.trace
    return Limits(
        seconds=asked.settings.trace_limit_s or site.time_limit_s,
        memory_mib=site.memory_mib,
        cpus=TRACE_CPUS,
        at_once=None if in_job else site.at_once or AS_FREE,
    )


def _tasks(asked: Submission, data: bytes) -> Tuple[List[Optional[ArrayTask]], List[str]]:
    """The tasks of an array that are traced, and what to say of the choice."""
    array = asked.options.get("array")
    choice = asked.settings.text("trace-tasks")
    if not array:
        if choice:
            raise UsageError(
                f"{asked.settings.spelled('trace-tasks')} {choice}: the job is no array (--array)"
            )
        return [None], []
    tasks = array_tasks(array)
    notes = []
    if choice is None:
        # Without the task's number in the script all tasks are most likely alike.
        choice = "ends" if b"ARRAY_TASK_ID" in data and len(tasks) > 1 else "first"
        others = len(tasks) - (2 if choice == "ends" else 1)
        if others:
            which = f"tasks {tasks[0]} and {tasks[-1]} are" if choice == "ends" else f"task {tasks[0]} is"
            notes = [f"{which} traced for all {len(tasks)}; --trace-tasks each (or 3,7) traces others"]
    ends = {"first": tasks[:1], "last": tasks[-1:], "ends": (tasks[0], tasks[-1]), "each": tasks}
    chosen = tuple(dict.fromkeys(ends.get(choice) or _listed(asked, choice, tasks)))
    if len(chosen) > _MOST_TASKS:
        raise UsageError(f"--trace-tasks {choice} means {len(chosen)} traces; choose at most {_MOST_TASKS}")
    return [ArrayTask(task, tasks) for task in chosen], notes


def _listed(asked: Submission, choice: str, tasks: Sequence[int]) -> Tuple[int, ...]:
    spelled = asked.settings.spelled("trace-tasks")
    try:
        listed = array_tasks(choice)
    except UsageError:
        raise UsageError(
            f"{spelled} must be first, last, ends, each or tasks like 3,7; not {choice!r}"
        ) from None
    missing = [task for task in listed if task not in set(tasks)]
    if missing:
        raise UsageError(f"{spelled} {choice}: the array has no task {missing[0]}")
    return listed


def _of_tasks(chosen: Sequence[Optional[ArrayTask]], found: Sequence[Trace]) -> str:
    sizes = [(trace.estimate.request_mib, task.task) for task, trace in zip(chosen, found) if task]
    most, least = max(sizes), min(sizes)
    if most[0] == least[0]:
        return f"of {len(found)} traced tasks, each needs {most[0]:,} MiB"
    needs = f"task {most[1]} needs most ({most[0]:,} MiB), task {least[1]} least ({least[0]:,} MiB)"
    return f"of {len(found)} traced tasks, {needs}"
