"""Submit a job that asks for part of a GPU: decide, tell the user, hand over to sbatch."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from slurm_gpumem.cli.run import say
from slurm_gpumem.config.load import Config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.slurm.gpu_options import gpu_wish, merge_wishes
from slurm_gpumem.slurm.options import CommandLine, OptionSpec, OptionTable
from slurm_gpumem.slurm.script import BatchScript
from slurm_gpumem.submission.activity import share_lines, utilization_json
from slurm_gpumem.submission.decide import Decision, decide
from slurm_gpumem.submission.sbatch_call import (
    Submission,
    build_submission,
    capture_submission,
    plain_submission,
    run_submission,
    shell_words,
)
from slurm_gpumem.submission.settings import JobSettings
from slurm_gpumem.submission.types import GpuRequest
from slurm_gpumem.units import format_mib

SCHEMA = "gpumem-submit/1"


def submit_shared(
    line: CommandLine,
    script: Optional[BatchScript],
    settings: JobSettings,
    config: Config,
    table: OptionTable,
    switches: Mapping[str, bool],
    warnings: Sequence[str],
    plugin_options: Callable[[], Sequence[OptionSpec]],
) -> int:
    """Decide what the job asks for and submit it so."""
    # Before anything can fail: a warning is often the reason.
    _say_all(f"warning: {warning}" for warning in warnings)
    in_script = script.options(table, plugin_options) if script else ()
    wishes = merge_wishes(line.options, os.environ, in_script)
    if switches["json"] and wishes.any_of("parsable"):
        raise UsageError("--json and --parsable both say what stdout is; choose one")
    if line.het_job or (script is not None and script.het_job):
        say("a heterogeneous job keeps its GPUs as they are; nothing was estimated")
        return _hand_over(plain_submission(line, [], script), None, config, switches, warnings)
    wish = gpu_wish(wishes, script)
    decision = decide(settings, wishes, wish, config)
    observe = config.sharing.mode == "observe"
    submission = build_submission(
        line, decision, settings, wishes, wish, script, table, change_nothing=observe
    )
    if not wishes.any_of("quiet"):
        say(human_line(decision, settings, config))
        _say_all(submission.notes)
    _say_all(f"warning: {warning}" for warning in decision.warnings)
    if switches["explain"]:
        print("\n".join(_explained(decision, settings, config)), file=sys.stderr)
    return _hand_over(submission, decision, config, switches, [*warnings, *decision.warnings])


def human_line(decision: Decision, settings: JobSettings, config: Config) -> str:
    """What was estimated, what is asked, why: one line."""
    from slurm_gpumem.terminal.bars import speaks_unicode

    arrow = "→" if speaks_unicode(sys.stderr) else "->"
    request = decision.request
    told = []
    if decision.estimate:
        model = os.path.basename(settings.model) if settings.model else "memory line"
        told.append(f"{model}, {_job_words(decision.estimate)} {arrow}")
        told.append(f"peak {format_mib(decision.estimate.peak_mib)}{_measured(decision.estimate)},")
    if request is None:
        told.append(f"GPU options left as they are: {decision.reason}")
    elif request.whole_gpu:
        told.append(f"asking for a whole GPU ({request.gres}): {request.reason}")
    else:
        told.append(f"asking for {_size(_asked_mib(request, decision.gpu, config))} ({request.reason})")
        told += [] if decision.estimate else ["as given by hand"]
    return " ".join(told)


def _measured(estimate: Estimate) -> str:
    """Said of a peak that was not estimated: where it is known from."""
    from slurm_gpumem.estimators.remembered import NAME

    return f" ({estimate.assumptions[0]})" if estimate.estimator == NAME and estimate.assumptions else ""


def _asked_mib(request: GpuRequest, gpu: Optional[Gpu], config: Config) -> int:
    """The GPU memory that the units asked for stand for."""
    if config.sharing.gres == "mps" and gpu is not None:
        return gpu.memory_mib * request.units // request.per_gpu
    return request.units * config.sharing.shard_mib


def _size(mib: int) -> str:
    return format_mib(mib).replace(".0 ", " ")


def _job_words(estimate: Estimate) -> str:
    from slurm_gpumem.estimators.assumptions import describe_job

    return describe_job(estimate.job)


def _explained(decision: Decision, settings: JobSettings, config: Config) -> List[str]:
    if decision.estimate is None or decision.summary is None or decision.gpu is None:
        given = "is the memory line's" if decision.by_line else "was given by hand"
        return [f"gpumem: nothing to explain: the GPU memory {given}"]
    from dataclasses import replace

    from slurm_gpumem.estimators import registry
    from slurm_gpumem.estimators.whatif import alternatives
    from slurm_gpumem.report.estimate import explain_lines

    summary, estimate, gpu = decision.summary, decision.estimate, decision.gpu
    if not summary.name and settings.model:
        summary = replace(summary, name=os.path.splitext(os.path.basename(settings.model))[0])
    other = alternatives(
        estimate,
        gpu,
        lambda job: registry.run(registry.for_other_jobs(estimate.estimator), summary, job, gpu),
        config.sharing.shard_mib,
    )
    lines = explain_lines(summary, estimate, gpu, other, config.sharing.shard_mib)
    request = decision.request
    if request is not None and request.units and not request.whole_gpu:
        unit = "mps units" if config.sharing.gres == "mps" else "shards"
        lines += share_lines(decision.activity, request.memory_units, request.activity_units, unit)
    return lines


def _hand_over(
    submission: Submission,
    decision: Optional[Decision],
    config: Config,
    switches: Mapping[str, bool],
    warnings: Sequence[str],
) -> int:
    if not switches["json"]:
        if switches["dry-run"]:
            sys.stdout.buffer.write(os.fsencode(shell_words(submission)) + b"\n")
            return 0
        return run_submission(submission)
    import json

    answer = _as_json(decision, submission, warnings)
    code = 0
    if not switches["dry-run"]:
        parsable = submission._replace(
            argv=(submission.argv[0], "--parsable", *submission.argv[1:]),
            script_at=None if submission.script_at is None else submission.script_at + 1,
        )
        code, stdout = capture_submission(parsable)
        job_id, _, cluster = stdout.strip().partition(";")
        answer["job_id"] = int(job_id) if job_id.isdigit() else None
        answer["cluster"] = cluster or None
    if code == 0:
        print(json.dumps(answer))
    return code


def _as_json(decision: Optional[Decision], submission: Submission, warnings: Sequence[str]) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"schema": SCHEMA, "command": list(submission.argv), "warnings": list(warnings)}
    if decision is None:
        return answer
    estimate, request, need = decision.estimate, decision.request, decision.need
    return {
        **answer,
        "peak_mib": estimate.peak_mib if estimate else None,
        "request_mib": need.request_mib if need else None,
        "floor_mib": estimate.floor_mib if estimate else None,
        "parts": dict(estimate.parts) if estimate else None,
        "estimator": estimate.estimator if estimate else None,
        "gpu": estimate.gpu if estimate else None,
        "shards": request.units if request else 0,
        "shards_per_gpu": request.per_gpu if request else None,
        "shards_by_memory": request.memory_units or None if request else None,
        "shards_by_activity": request.activity_units or None if request else None,
        "max_slowdown": decision.activity.limit if decision.activity else None,
        "utilization": utilization_json(estimate.utilization) if estimate else None,
        "gres": request.gres if request else None,
        "whole_gpu": request is None or request.whole_gpu,
        "reason": request.reason if request else decision.reason,
        "cpus": decision.host.cpus or None,
        "host_memory_mib": decision.host.memory_mib or None,
    }


def _say_all(lines: Iterable[str]) -> None:
    for text in lines:
        say(text)
