"""What was decided for a job, flat: for Python callers and for `gpusbatch --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.sbatch_call import PlannedCall


@dataclass(frozen=True)
class Decision:
    """What a job asks of Slurm, why, and the sbatch command that asks for it."""

    argv: Tuple[str, ...]
    """The sbatch command. The script's path is the caller's own, even where `script` replaces it."""
    script: Optional[str]
    """The script's text where sbatch does not get the caller's file as it is: the file without its GPU
    options, or a text that was given instead of a path. None: the file itself, or no script."""
    reason: str
    """Why it is what it is: "15 of 40 shards on an a100", "it asks for 2 GPUs (--gres)"."""
    options: Mapping[str, str]
    """The sbatch options that ask for it, by name: gres, cpus-per-task, mem, open-mode, comment. For callers
    that run sbatch themselves: add these, and leave out other options that ask for GPUs."""
    peak_mib: Optional[int] = None
    """The estimated peak; None where the memory was given by hand or nothing asks for a share."""
    request_mib: Optional[int] = None
    """The memory that the job is to have; None where nothing is known of it."""
    gres: Optional[str] = None
    """The value of --gres: "shard:15", "gpu:1g.18gb:1", "gpu:1"; None: the job's own GPU options stay."""
    shards: int = 0
    """Shards (or mps units); 0 for whole GPUs."""
    shards_per_gpu: Optional[int] = None
    """Shards (or mps units) of one such GPU."""
    shards_by_memory: Optional[int] = None
    """What memory alone would ask for; None where it does not count."""
    shards_by_activity: Optional[int] = None
    """What the job's activity alone would ask for; None where it does not count."""
    max_slowdown: Optional[float] = None
    """The slowdown that counts for the job; None where none does."""
    instance_mib: Optional[int] = None
    """Memory of the MIG instance that is asked for; None where none is."""
    whole_gpu: bool = True
    """Whether the job has its GPUs to itself."""
    cpus: Optional[int] = None
    """CPUs that go with the share, asked for unless the job asked for some ..."""
    cpus_by_share: Optional[int] = None
    """... in proportion to it; `cpus` is less where earlier runs used less."""
    host_memory_mib: Optional[int] = None
    """Host memory in proportion, likewise."""
    unfinished: str = ""
    """How much a trace saw that did not come to the script's end; "" where that does not decide."""
    estimate: Optional[Estimate] = None
    """The whole estimate, on the GPU in reach where the job needs most."""
    warnings: Tuple[str, ...] = ()
    """What may be wrong: unknown keys, a model unlike those that were measured."""
    notes: Tuple[str, ...] = ()
    """What the submission changes besides the request."""


def decision_of(plan: Plan, planned: PlannedCall) -> Decision:
    """The decision of a plan and its call."""
    largest, request, call = plan.largest, plan.request, planned.call
    estimate = largest.estimate if largest else None
    handed_over = call.script is not None and (call.copied or call.script_at is None)
    return Decision(
        argv=call.argv,
        script=call.script.text() if call.script is not None and handed_over else None,
        reason=plan.reason,
        options=dict(planned.added),
        peak_mib=estimate.peak_mib if estimate else None,
        request_mib=largest.need.request_mib if largest else None,
        gres=request.gres if request else None,
        shards=request.units if request else 0,
        shards_per_gpu=request.per_gpu if request else None,
        shards_by_memory=request.memory_units or None if request else None,
        shards_by_activity=request.activity_units or None if request else None,
        max_slowdown=largest.activity.limit if largest and largest.activity else None,
        instance_mib=request.instance_mib or None if request else None,
        whole_gpu=request is None or request.whole_gpu,
        cpus=plan.host.cpus or None,
        cpus_by_share=plan.host.cpus_by_share or None,
        host_memory_mib=plan.host.memory_mib or None,
        unfinished=plan.unfinished,
        estimate=estimate,
        warnings=(*plan.asked.warnings, *plan.warnings),
        notes=planned.notes,
    )
