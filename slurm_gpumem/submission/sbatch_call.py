"""The sbatch call of a plan: the user's words, with the GPU request replaced and what goes with it added."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.comment import PART_NAMES, CommentRecord, append_record, format_record, join_sizes
from slurm_gpumem.slurm.submit.gpu_options import REPLACED, input_variables
from slurm_gpumem.slurm.submit.sbatch import SBATCH, SbatchCall
from slurm_gpumem.slurm.submit.sbatch_options import sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.job.slots import slot_note, slot_seconds
from slurm_gpumem.submission.share.host import names_cpus

if TYPE_CHECKING:
    # A job that goes unchanged needs none of what decides.
    from slurm_gpumem.estimators.types import TrainingJob
    from slurm_gpumem.submission.plan import Plan
    from slurm_gpumem.submission.share.activity import Activity
    from slurm_gpumem.submission.share.request import GpuRequest
    from slurm_gpumem.submission.submission import RawInput

_NAME_BYTES = 40
_REMEMBERED = "remembered"
_WHOLE = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_TAKEN_OUT = REPLACED - {"gres"}
"""--gres on the command line overrides the script's and the environment's; nothing takes these back."""


class PlannedCall(NamedTuple):
    """The call, and what its user should know of it."""

    call: SbatchCall
    added: Mapping[str, str] = MappingProxyType({})
    """The options that were added for the request, by name."""
    notes: Tuple[str, ...] = ()


def build_call(plan: Plan) -> PlannedCall:
    """The call of sbatch that asks for what was decided."""
    raw, script = plan.asked.raw, plan.asked.script
    if plan.asked.goes_unchanged:
        return PlannedCall(unchanged_call(raw))
    notes: List[str] = []
    added = _requested(plan)
    part = plan.replaces
    replaced = REPLACED if part else frozenset({"gres"}) if "gres" in added else frozenset()
    if plan.request and plan.request.partition:
        replaced |= {"partition"}
    if plan.at_once is not None:
        from slurm_gpumem.submission.sweep.pilot import one_at_once

        replaced |= {"array"}
        added["array"] = one_at_once(plan.asked)
    slot = slot_seconds(plan.asked, plan.workload.fingerprint)
    if slot:
        notes.append(slot_note(slot))
        if not plan.asked.options.any_of("open-mode"):
            added["open-mode"] = "append"
    comment = _comment(plan, slot)
    if comment is not None:
        replaced |= {"comment"}
        added["comment"] = comment
    elif plan.largest is not None or plan.guess:
        notes.append("the comment is too long for our record behind it; the job goes without")
    if raw.program == SBATCH:
        replaced |= {"quiet"}  # that silences us: the job's number stays
    kept = [word for o in raw.line.options if not o.ours and o.name not in replaced for word in o.words]
    argv, at = _with_script(raw, [*kept, *(f"--{name}={value}" for name, value in added.items())])
    changed = script
    if script is not None and part and raw.plain:
        notes += _unset_in_shared_jobs(script)
    elif script is not None and part:
        changed = script.without(lambda option: option.name in _TAKEN_OUT, sbatch_table())
        if changed is not script:
            notes.append(f"the GPU options of {script.name} are taken out of the copy that is submitted")
        notes += _unset_in_shared_jobs(script)
    if plan.shared and plan.asked.options.get("mem") in ("0", "0M", "0G"):
        notes.append("--mem=0 takes the node's whole memory: nobody else can share its GPUs")
    unset = tuple(
        variable
        for name, variable in input_variables(raw.program).items()
        if part and name in _TAKEN_OUT and variable in os.environ
    )
    copied = changed is not script or _read_once(script)
    return PlannedCall(SbatchCall(tuple(argv), unset, changed, at, copied), added, tuple(notes))


def unchanged_call(raw: RawInput) -> SbatchCall:
    """sbatch with the very same words, less our own."""
    line, script = raw.line, raw.script
    if any(option.ours for option in line.options):
        argv, at = _with_script(raw, [word for o in line.options if not o.ours for word in o.words])
    else:
        argv, at = [raw.program, *line.argv], None if line.script_at is None else line.script_at + 1
    return SbatchCall(tuple(argv), script=script, script_at=at, copied=_read_once(script))


def _requested(plan: Plan) -> Dict[str, str]:
    """The GPU request, and CPUs and host memory with it unless the user asked for some."""
    asked, options = plan.asked, plan.asked.options
    if asked.observed:
        return {}
    added: Dict[str, str] = {}
    if plan.request and plan.request.constraint:
        added["constraint"] = plan.request.constraint
    if plan.request and plan.request.partition:
        added["partition"] = plan.request.partition
    # A whole GPU that another option asks for stays as it is: beside --gres it would be asked for twice.
    if plan.request and (plan.replaces or not options.any_of(*_WHOLE)):
        added["gres"] = ",".join([*asked.gpus.other_gres, plan.request.gres])
    if plan.shared or plan.instance:
        # Figures per GPU become those of the one GPU that the job was to have.
        cpus = options.get("cpus-per-gpu") or plan.host.cpus
        if cpus and not names_cpus(options):
            added["cpus-per-task"] = str(cpus)
        memory = options.get("mem-per-gpu") or (plan.host.memory_mib and f"{plan.host.memory_mib}M")
        if memory and not options.any_of("mem", "mem-per-cpu"):
            added["mem"] = str(memory)
        if asked.raw.program == SBATCH and not options.any_of("open-mode"):
            # A requeued job must not wipe the log of the run before it.
            added["open-mode"] = "append"
    return added


def _comment(plan: Plan, slot: Optional[int]) -> Optional[str]:
    """The user's comment and our record behind it; None without a known need, or without room."""
    if plan.largest is None and not plan.guess and not plan.workload.script and not slot:
        return None
    written = plan.asked.options.get("comment")
    record = _request(plan)._replace(slot=slot)
    if plan.at_once is not None:
        from slurm_gpumem.submission.sweep.pilot import noted

        record = noted(record, plan)
    # Where the user's comment leaves little room, the job's description goes first.
    whole = append_record(written, format_record(_described(record, plan)))
    return whole or append_record(written, format_record(record))


def record_of(plan: Plan) -> CommentRecord:
    """All that the comment of such a job says of it."""
    return _described(_request(plan), plan)


def _request(plan: Plan) -> CommentRecord:
    """What the plug-in and the hooks read in the job's comment; shards=0: the job is not to be shared."""
    largest, request = plan.largest, plan.request
    estimate, activity = (largest.estimate, largest.activity) if largest else (None, None)
    settings, options = plan.asked.settings, plan.asked.options
    used = estimate.utilization if estimate else None
    counted = activity.utilization if activity else None
    alone = counted if counted and counted.source == _REMEMBERED else used
    job = _job(plan)
    # Slurm requeues batch jobs only.
    requeue = plan.asked.raw.program == SBATCH and not options.any_of("no-requeue")
    requeue = requeue and settings.on_oom == "requeue"
    return CommentRecord(
        estimate_mib=estimate.peak_mib if estimate else None,
        request_mib=largest.need.request_mib if largest else None,
        estimator=estimate.estimator if estimate else "mem" if largest else "",
        gpu=(estimate.gpu if estimate else request.gpu_type if request else plan.workload.script_gpu) or "",
        batch=job.batch_size if job else None,
        shards=request.units if request and not request.whole_gpu else 0,
        sm=round(alone.sm_active) if alone and alone.is_known else None,
        dram=round(used.dram_active) if used else None,
        sm_by=_REMEMBERED if alone and alone.source == _REMEMBERED else "",
        slow=f"{activity.limit:g}" if activity else "",
        on_oom="requeue" if requeue else "fail",
        mode="observe" if plan.asked.observed else "",
        said=_said(activity, request),
    )


def _job(plan: Plan) -> Optional[TrainingJob]:
    """How the job trains; None where that is not known."""
    if plan.workload.script:
        return None
    estimate = plan.largest.estimate if plan.largest else None
    return estimate.job if estimate else plan.workload.job


def _said(activity: Optional[Activity], request: Optional[GpuRequest]) -> str:
    """How much longer it takes while sharing, as its owner is told: for `gpumem report`."""
    if activity is None or request is None or not request.per_gpu:
        return ""
    share = request.units / request.per_gpu
    worst = activity.worst(share)
    return "" if worst is None else f"{activity.usual(share):.2f}+{worst:.2f}"


def _described(record: CommentRecord, plan: Plan) -> CommentRecord:
    """The record with what reports show of the job besides, and what its measured peak is remembered by."""
    estimate = plan.largest.estimate if plan.largest else None
    if plan.workload.script:
        return record._replace(model=plan.script_name[:_NAME_BYTES], fingerprint=plan.workload.script)
    job = _job(plan)
    if job is None:
        return record._replace(fingerprint=plan.workload.fingerprint or "")
    from slurm_gpumem.estimators.remembered import variant

    parts = estimate.parts if estimate else {}
    return record._replace(
        model=plan.model_name[:_NAME_BYTES],
        fingerprint=plan.workload.fingerprint or "",
        optimizer=job.optimizer,
        precision=job.precision,
        variant=variant(job),
        parts=join_sizes(parts.values()) if tuple(parts) == PART_NAMES else "",
    )


def _with_script(raw: RawInput, options: List[str]) -> Tuple[List[str], Optional[int]]:
    line, argv = raw.line, [raw.program, *options]
    if line.script is None:
        return argv, None
    if line.script.startswith("-") or line.script == ":":
        argv.append("--")
    return [*argv, line.script, *line.script_args], len(argv)


def _unset_in_shared_jobs(script: BatchScript) -> List[str]:
    """A script that counts its GPUs by a variable which only whole-GPU options set would trip over it."""
    text = script.text()
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"):
        if f"${name}" in text.replace("{", "").replace(f"${name}_", ""):
            return [
                f"{script.name} reads ${name}, which a shared job does not have; $SLURM_GPUS_ON_NODE is 1"
            ]
    return []


def _read_once(script: Optional[BatchScript]) -> bool:
    """Whether sbatch could not read the script again after us."""
    return script is not None and not script.again_readable
