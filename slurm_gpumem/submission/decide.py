"""Decide what a job asks of Slurm: what is asked, the GPUs in reach, the need there, the request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.errors import DoesNotFitError, NotEstimatedError, SlurmError, UsageError, not_estimated
from slurm_gpumem.slurm.client import SlurmMissingError
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.submission.candidate_gpus import CandidateGpus, find_candidates
from slurm_gpumem.submission.host import HostShare, host_share, names_cpus
from slurm_gpumem.submission.needs import NeedOnGpu, Needs, estimate_needs
from slurm_gpumem.submission.request import (
    GpuKind,
    GpuRequest,
    Need,
    fits_somewhere,
    needs_whole_gpu,
    share_gpu,
    type_of_whole,
    whole_gpu,
)
from slurm_gpumem.submission.slots import check_slot
from slurm_gpumem.submission.submission import Submission, Workload, key_of_script, read_workload

if TYPE_CHECKING:
    from slurm_gpumem.estimators.types import CustomForward

NOT_RUN_YET = "it has not run yet"


class Plan(NamedTuple):
    """What is asked of Slurm for a job, and all that led to it."""

    asked: Submission
    workload: Workload = Workload()
    largest: Optional[NeedOnGpu] = None
    """The job's need on the GPU in reach where it is largest; None when nothing is known of it."""
    request: Optional[GpuRequest] = None
    """None: the job's own GPU options stay as they are."""
    host: HostShare = HostShare(0, 0)
    kept_because: str = ""
    """Why the job's own GPU options stay; empty with a request, which has a reason of its own."""
    warnings: Tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether shards (or mps units) are asked for, be it all of a GPU's."""
        return self.request is not None and self.request.units > 0

    @property
    def instance(self) -> bool:
        """Whether a MIG instance is asked for."""
        return self.request is not None and self.request.instance_mib > 0

    @property
    def reason(self) -> str:
        """Why the job asks for what it asks for."""
        return self.request.reason if self.request else self.kept_because

    @property
    def unfinished(self) -> str:
        """How much of the script the trace saw that decides, where it did not come to its end; "" else."""
        estimate = self.largest.estimate if self.largest else None
        return self.workload.unfinished if estimate and estimate.margin.group == "trace" else ""

    @property
    def model_name(self) -> str:
        """The model's name: its file's, else the summary's own; empty where there is no model."""
        path, summary = self.asked.settings.model or "", self.workload.summary
        from_file = "\n" not in path and self.asked.raw.summary is None and self.asked.traced is None
        by_file = os.path.splitext(os.path.basename(path))[0] if from_file else ""
        return by_file or (summary.name if summary else "")

    @property
    def script_name(self) -> str:
        """The script's name for people; "job" where it has none."""
        script, command = self.asked.script, self.asked.command
        if command:
            return os.path.basename(command[0])
        return os.path.basename(script.path or "") or "job" if script else "job"

    @property
    def reserved_mib(self) -> int:
        """The GPU memory that the units or the MIG instance asked for stand for; 0 without any."""
        if self.request is None or not self.request.units:
            return self.request.instance_mib if self.request else 0
        policy = self.asked.config.sharing
        if policy.gres == "mps" and self.largest is not None:
            return self.largest.gpu.memory_mib * self.request.units // self.request.per_gpu
        return self.request.units * policy.shard_mib


def decide(asked: Submission) -> Plan:
    """What to ask for; DoesNotFitError when no GPU in reach is large enough."""
    check_slot(asked)
    if asked.goes_unchanged:
        return Plan(asked, kept_because=asked.goes_unchanged)
    if asked.learns:
        return _by_earlier_runs(asked)
    from slurm_gpumem.submission.sharded_jobs import why_not_estimated

    unknown = why_not_estimated(asked)
    if unknown:
        return _kept_whole(asked, unknown)
    try:
        workload = read_workload(asked)
    except NotEstimatedError as error:
        return _kept_whole(asked, error.why)
    if asked.gpus.gpus > 1:
        from slurm_gpumem.submission.launcher import refuse_more_ranks_than_gpus

        refuse_more_ranks_than_gpus(asked)
    try:
        candidates = find_candidates(asked)
    except SlurmMissingError:
        raise  # Then sbatch is missing as well.
    except SlurmError as error:
        return _without_answer(asked, workload, error)
    if candidates.empty:
        return Plan(asked, workload, kept_because=candidates.empty, warnings=candidates.warnings)
    needs = estimate_needs(asked, workload, candidates)
    return _with_remarks(choose_request(asked, workload, candidates, needs))


def _kept_whole(asked: Submission, why: str) -> Plan:
    """A job whose peak is not estimated: its own GPU options, or one whole GPU where it has none."""
    reason = not_estimated(why)
    if asked.gpus.gpus or asked.gpus.shared_gres or asked.observed:
        return Plan(asked, kept_because=reason)
    gpu_type = asked.gpus.gpu_type
    return Plan(asked, request=GpuRequest(gres_word("gpu", gpu_type, 1), 0, 0, gpu_type, True, reason))


def _without_answer(asked: Submission, workload: Workload, error: SlurmError) -> Plan:
    """Slurm says nothing of its GPUs, which refuses no job: it goes as it asked, or with a whole GPU."""
    done = "its share of a GPU was not decided, and nothing is recorded of it"
    if asked.gpus.gpus or asked.gpus.shared_gres or asked.observed:
        plan = Plan(asked, workload, kept_because="Slurm did not say which GPUs it has")
        return plan._replace(warnings=(f"{error}.\nThe job goes to sbatch as it is: {done}",))
    reason = "Slurm did not say which GPUs it has"
    request = GpuRequest(gres_word("gpu", asked.gpus.gpu_type, 1), 0, 0, asked.gpus.gpu_type, True, reason)
    warning = f"{error}.\nThe job asks for a whole GPU instead of a part: {done}"
    return Plan(asked, workload, request=request, warnings=(warning,))


def _with_remarks(plan: Plan) -> Plan:
    """The plan, and what its script says that does not go with it."""
    from slurm_gpumem.submission.script_remarks import (
        batch_remark,
        preallocation_remark,
        server_remarks,
        source_remarks,
        variables_remark,
    )

    asked, workload, largest = plan.asked, plan.workload, plan.largest
    found = [
        batch_remark(asked, workload),
        variables_remark(asked, workload),
        *source_remarks(asked, workload.summary),
        *workload.notes,
    ]
    if plan.shared and not (plan.request and plan.request.whole_gpu) and largest is not None:
        found.append(preallocation_remark(asked, largest.model, plan.reserved_mib))
        found.append(server_remarks(asked, largest.model, plan.reserved_mib))
    return plan._replace(warnings=(*plan.warnings, *filter(None, found)))


def _by_earlier_runs(asked: Submission) -> Plan:
    """A share by what earlier runs of the script measured; its own options where it has not run yet."""
    from slurm_gpumem.accounting.notice import note_new_runs

    key = key_of_script(asked)
    plan = Plan(asked, Workload(script=key), kept_because=NOT_RUN_YET)
    if asked.gpus.gpus != 1 or asked.gpus.keep_whole or asked.gpus.shared_gres:
        return plan._replace(kept_because=asked.gpus.keep_whole or "it asks for no single GPU")
    note_new_runs()
    try:
        candidates = find_candidates(asked)
    except (SlurmError, UsageError):
        return plan  # sbatch says in its own words what is wrong
    if candidates.empty or candidates.whole_nodes:
        return plan
    names = {gpu.name for gpu in candidates.gpus}
    plan = plan._replace(workload=Workload(script=key, script_gpu=names.pop() if len(names) == 1 else None))
    from slurm_gpumem.submission.script_remarks import server_remarks

    server = server_remarks(asked, candidates.models[0], None) if candidates.models else None
    if server:
        return plan._replace(warnings=(server,))
    first_mib = asked.config.sharing.first_run_mib
    workload = plan.workload._replace(mem_mib=first_mib)
    needs = estimate_needs(asked, workload, candidates)
    if not first_mib and not all(one.estimate for one in needs.on):
        return plan
    if not fits_somewhere(candidates.kinds, needs.needs):
        return plan._replace(kept_because="earlier runs took more than a GPU here has")
    return _with_remarks(choose_request(asked, plan.workload, candidates, needs))


def choose_request(asked: Submission, workload: Workload, candidates: CandidateGpus, needs: Needs) -> Plan:
    """A share of a GPU, a whole one, or the job's own options."""
    largest, policy = needs.largest, asked.config.sharing
    estimate = largest.estimate
    said = (*candidates.warnings, *needs.warnings)
    plan = Plan(
        asked,
        workload,
        largest if largest.need.request_mib else None,
        warnings=(*said, *(estimate.warnings if estimate else ())),
    )
    if asked.observed:
        return plan._replace(kept_because="the site only observes (sharing.mode)")
    if asked.gpus.shared_gres:
        return plan._replace(kept_because=f"its own --gres={asked.gpus.shared_gres} stays")
    unseen = estimate.margin.custom_forward if estimate else None
    reason = _why_whole(asked, workload, candidates)
    several = workload.job is not None and workload.job.gpus > 1
    if several and (reason or not fits_somewhere(candidates.kinds, needs.needs)):
        from slurm_gpumem.submission.several_gpus import verdict

        holds, more = verdict(asked, workload, candidates, needs)
        reason = "; ".join(filter(None, (reason, holds))) or "no GPU in reach holds the whole model"
        plan = plan._replace(warnings=(*plan.warnings, *more))
    if reason is None and unseen:
        reason = _because_of_custom_forward(asked, unseen)
    if reason is None and plan.unfinished:
        reason = _because_unfinished(asked, plan.unfinished)
    if reason is None and not fits_somewhere(candidates.kinds, needs.needs):
        from slurm_gpumem.submission.does_not_fit import does_not_fit

        raise DoesNotFitError(does_not_fit(asked, workload, candidates, largest))
    if reason is None:
        instance = _instance(asked, candidates, needs, policy)
        if isinstance(instance, str):
            return plan._replace(kept_because=instance)
        if instance is not None:
            on = next(
                one for one, kind in zip(needs.on, candidates.kinds) if kind.gpu_type == instance.gpu_type
            )
            host = _host(plan, candidates, instance)
            more = on.estimate.warnings if on.estimate else ()
            known = on if on.need.request_mib else None
            return plan._replace(request=instance, host=host, largest=known, warnings=(*said, *more))
    reason = reason or _why_undivided(candidates, policy)
    narrowed, note = _narrowed(asked, candidates, needs, reason) if reason else (None, "")
    if note:
        plan = plan._replace(warnings=(*plan.warnings, note))
    if narrowed is not None:
        return plan._replace(request=narrowed)
    if reason and asked.gpus.gpus and not _wants_gpu_alone(asked):
        return plan._replace(kept_because=reason)
    if reason and not _wants_gpu_alone(asked):
        gpu_type = candidates.gpu_type or type_of_whole(candidates.kinds, needs.needs)
        request = GpuRequest(gres_word("gpu", gpu_type, 1), 0, 0, gpu_type, True, reason)
    elif reason:
        request = _gpu_alone(candidates, needs, policy, reason)
    elif largest.activity and needs_whole_gpu(candidates.kinds, needs.needs):
        request = _gpu_alone(
            candidates,
            needs,
            policy,
            f"beside others a slowdown of {largest.activity.limit:g} is out of reach",
        )
    else:
        request = share_gpu(candidates.kinds, needs.needs, policy, gpu_type=candidates.gpu_type)
        if asked.nodes > 1:
            request = request._replace(reason=f"{request.reason}, on each of {asked.nodes} nodes")
    return plan._replace(request=request, host=_host(plan, candidates, request))


def _host(plan: Plan, candidates: CandidateGpus, request: GpuRequest) -> HostShare:
    """CPUs and host memory of a share, the CPUs by what the job's earlier runs used where any did."""
    asked, policy = plan.asked, plan.asked.config.sharing
    estimate = plan.largest.estimate if plan.largest else None
    fingerprint = plan.workload.fingerprint
    if not fingerprint or not estimate or policy.cpus != "used" or names_cpus(asked.options):
        return host_share(request, candidates.kinds, policy)
    from slurm_gpumem.estimators.remembered import cpus_of_runs

    job = None if plan.workload.script else estimate.job
    runs = [run for gpu in candidates.gpus for run in cpus_of_runs(fingerprint, job, gpu)]
    return host_share(request, candidates.kinds, policy, runs)


def _instance(
    asked: Submission, candidates: CandidateGpus, needs: Needs, policy: SharingPolicy
) -> Union[GpuRequest, str, None]:
    """The MIG instance to ask for; why the job keeps the one it named; None where it takes none."""
    if not any(kind.profile for kind in candidates.kinds):
        return None
    from slurm_gpumem.submission.instances import smallest_instance

    divided = _why_undivided(candidates, policy) is None and not needs_whole_gpu(
        candidates.kinds, needs.needs
    )
    share_mib = None
    if divided and fits_somewhere(*_divided(candidates.kinds, needs.needs)):
        share = share_gpu(candidates.kinds, needs.needs, policy, gpu_type=candidates.gpu_type)
        taken = Plan(asked, largest=needs.largest, request=share)
        share_mib = taken.reserved_mib
    found = smallest_instance(candidates.kinds, needs.needs, share_mib=share_mib)
    if found is not None and asked.gpus.gpus and asked.gpus.gpu_type:
        return f"it asks for {asked.gpus.gpu_type}, which holds it"
    return found


def _narrowed(
    asked: Submission, candidates: CandidateGpus, needs: Needs, reason: str
) -> Tuple[Optional[GpuRequest], str]:
    """A whole GPU of those that hold the job, where --gpu any asks for it and others are in reach; a note.

    A share needs none of this: it is larger than the GPUs that do not hold the job.
    """
    divided = any(kind.units for kind in candidates.kinds) and not candidates.gpu_keeps_off_shards
    if (
        candidates.gpu_type
        or asked.gpus.gpu_type
        or asked.gpus.keep_whole
        or len(candidates.kinds) < 2
        or divided
    ):
        return None, ""
    from slurm_gpumem.submission.types_that_fit import narrow, sides

    found = sides(candidates.kinds, needs.needs)
    if not str(found):
        return None, ""
    may_land = f"it {found}; it may land on {found.too_small[0].label}"
    if not asked.settings.any_gpu:
        return None, f"{may_land}: {asked.settings.spelled('gpu')} any asks only for GPUs that hold it"
    own_constraint = asked.options.any_of("constraint")
    chosen = narrow(found, candidates.groups, candidates.partitions, own_constraint=own_constraint)
    if chosen is None:
        return None, f"{may_land}: Slurm has no name for the GPUs that hold it"
    word = gres_word("gpu", chosen.gpu_type, 1)
    request = GpuRequest(word, 0, 0, chosen.gpu_type, True, f"it {found}; {reason}", narrowed=True)
    return request._replace(constraint=chosen.constraint, partition=chosen.partition), ""


def _divided(kinds: Sequence[GpuKind], needs: Sequence[Need]) -> Tuple[Tuple[GpuKind, ...], Tuple[Need, ...]]:
    pairs = [(kind, need) for kind, need in zip(kinds, needs) if kind.units]
    return tuple(kind for kind, _ in pairs), tuple(need for _, need in pairs)


def _why_whole(asked: Submission, workload: Workload, candidates: CandidateGpus) -> Optional[str]:
    """Why the job is to have whole GPUs, as it asked or its partition gives them; None when it may share."""
    if asked.gpus.keep_whole:
        return asked.gpus.keep_whole
    if asked.nodes > 1 and workload.line:
        return f"its memory line is of one process, and it runs on {asked.nodes} nodes (model= or mem= share)"
    if candidates.whole_nodes:
        return f"partition {candidates.whole_nodes} gives whole nodes"
    return f"as {asked.settings.spelled('exclusive-gpu')} asks" if asked.settings.exclusive_gpu else None


def _because_of_custom_forward(asked: Submission, unseen: CustomForward) -> Optional[str]:
    """Why a job whose text does not show enough gets a whole GPU; None where the site lets it share."""
    rule = asked.config.text.unknown
    if rule == "ask":
        memory, alone = (asked.settings.spelled(name) for name in ("mem", "exclusive-gpu"))
        raise UsageError(
            f"{unseen.message}. This site does not guess here (text.unknown): trace it, say what it needs "
            f"({memory}), or take a whole GPU ({alone}). Nothing was submitted."
        )
    if rule == "whole-gpu" and not unseen.no_shapes:
        return f"{unseen.classes[0]}.forward cannot be seen in a text (text.unknown)"
    # No width is enough for a guess: such a text says as little as none.
    return "the text shows no shapes" if unseen.no_shapes else None


def _because_unfinished(asked: Submission, seen: str) -> Optional[str]:
    """Why a job whose trace did not see its end gets a whole GPU; None where it gets a margin."""
    rule = asked.config.trace.unfinished
    if rule == "ask":
        words = ("trace-limit", "mem", "exclusive-gpu")
        limit, memory, alone = (asked.settings.spelled(name) for name in words)
        raise UsageError(
            f"the trace did not come to the script's end: seen were {seen}. This site does not guess here "
            f"(trace.unfinished): allow more ({limit} 600), say what it needs ({memory}), or take a whole "
            f"GPU ({alone}). Nothing was submitted."
        )
    return f"the trace saw {seen} (trace.unfinished)" if rule == "whole-gpu" else None


def _why_undivided(candidates: CandidateGpus, policy: SharingPolicy) -> Optional[str]:
    """Why no GPU in reach can be shared; None when one can."""
    gres = policy.gres
    if not any(kind.units for kind in candidates.kinds):
        return f"partition {candidates.names} has no {gres}{'s' if gres == 'shard' else ''}"
    if gres == "mps" and not any(kind.units and kind.memory_mib for kind in candidates.kinds):
        labels = ", ".join(sorted({kind.label for kind in candidates.kinds}))
        return (
            f"the memory of {labels} is not known (gpumem-gpus.toml beside the site's gpumem.toml can say it)"
        )
    return None


def _wants_gpu_alone(asked: Submission) -> bool:
    """Whether the job asked for a GPU that nobody shares, and not for several or for whole nodes."""
    return asked.settings.exclusive_gpu and not asked.gpus.keep_whole


def _gpu_alone(candidates: CandidateGpus, needs: Needs, policy: SharingPolicy, reason: str) -> GpuRequest:
    return whole_gpu(
        candidates.kinds,
        needs.needs,
        policy,
        gpu_type=candidates.gpu_type,
        gpu_keeps_off_shards=candidates.gpu_keeps_off_shards,
        reason=reason,
    )
