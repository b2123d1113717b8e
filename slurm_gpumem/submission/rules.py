"""Whole GPU, share, MIG instance or the job's own options: rules in order; the first answer counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple, Union

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.errors import DoesNotFitError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.largest import alternatives, largest_that_fits
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.submission.candidate_gpus import CandidateGpus
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.share.host import HostShare, host_share, named_cpus, names_cpus
from slurm_gpumem.submission.share.request import (
    GpuRequest,
    fits_somewhere,
    largest_kind,
    needs_whole_gpu,
    share_gpu,
    type_of_whole,
    whole_gpu,
)
from slurm_gpumem.submission.submission import Submission, Workload
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import format_mib

if TYPE_CHECKING:
    from slurm_gpumem.estimators.types import CustomForward, Estimate


class Keep(NamedTuple):
    """The job's own GPU options stay."""

    reason: str


class Whole(NamedTuple):
    """A GPU that nobody shares: the job's own, where it asked for some."""

    reason: str
    warnings: Tuple[str, ...] = ()
    replaces: bool = False
    """Whether a GPU that the job asked for by itself is replaced, as others could land on that one."""


class Share(NamedTuple):
    """A part of one GPU."""

    request: GpuRequest


class Instance(NamedTuple):
    """A MIG instance."""

    request: GpuRequest


Verdict = Union[Keep, Whole, Share, Instance]


class Case(NamedTuple):
    """What the rules look at; the GPUs in reach and the needs there are the same for all of them."""

    asked: Submission
    workload: Workload
    candidates: CandidateGpus
    needs: Needs
    largest: NeedOnGpu

    @property
    def policy(self) -> SharingPolicy:
        """The site's, of sharing."""
        return self.asked.config.sharing

    @property
    def estimate(self) -> Optional[Estimate]:
        """Where the job needs most; None where its memory was given by hand."""
        return self.largest.estimate

    @property
    def fits(self) -> bool:
        """Whether any GPU in reach holds the job."""
        return fits_somewhere(self.candidates.kinds, self.needs.needs)

    @property
    def unseen(self) -> Optional[CustomForward]:
        """The code that a summary did not show."""
        return self.estimate.margin.custom_forward if self.estimate else None

    @property
    def plan(self) -> Plan:
        """The plan so far: a number that is a guess stands nowhere in it."""
        guess = self.unseen is not None and self.unseen.no_shapes
        known = self.largest if self.largest.need.request_mib and not guess else None
        said = (*self.candidates.warnings, *self.needs.warnings)
        more = self.estimate.warnings if self.estimate and not guess else ()
        return Plan(self.asked, self.workload, known, guess=guess, warnings=(*said, *more))


def choose_request(asked: Submission, workload: Workload, candidates: CandidateGpus, needs: Needs) -> Plan:
    """The plan that the first rule with an answer makes; DoesNotFitError where no GPU in reach is enough."""
    case = Case(asked, workload, candidates, needs, needs.largest)
    verdict: Verdict = next(found for found in (rule(case) for rule in RULES) if found is not None)
    if isinstance(verdict, Keep):
        return case.plan._replace(kept_because=verdict.reason)
    if isinstance(verdict, Whole):
        return _whole(case, verdict)
    return _part(case, verdict.request)


def _observed(case: Case) -> Optional[Verdict]:
    return Keep("the site only observes (sharing.mode)") if case.asked.observed else None


def _own_shards(case: Case) -> Optional[Verdict]:
    own = case.asked.gpus.shared_gres
    return Keep(f"its own --gres={own} stays") if own else None


def _asked_for(case: Case) -> Optional[Verdict]:
    """Whole GPUs, as the job asks for them or its partition gives them."""
    reason = _why_whole(case)
    return Whole(reason) if reason and not _several(case) else None


def _several_gpus(case: Case) -> Optional[Verdict]:
    """Several GPUs, which are compared with what each of them needs."""
    reason = _why_whole(case)
    if not _several(case) or not (reason or not case.fits):
        return None
    if case.unseen and case.unseen.no_shapes:
        return Whole(reason or _no_shapes(case))
    from slurm_gpumem.submission.job.several_gpus import verdict

    holds, warnings = verdict(case.asked, case.workload, case.candidates, case.needs)
    reason = "; ".join(filter(None, (reason, holds))) or "no GPU in reach holds the whole model"
    return Whole(reason, warnings)


def _custom_forward(case: Case) -> Optional[Verdict]:
    """A summary without shapes says as little as none: no width is enough for a guess."""
    return Whole(_no_shapes(case)) if case.unseen and case.unseen.no_shapes else None


def _too_large(case: Case) -> Optional[Verdict]:
    if case.fits:
        return None

    raise DoesNotFitError(does_not_fit(case.asked, case.workload, case.candidates, case.largest))


def _instance(case: Case) -> Optional[Verdict]:
    """A MIG instance, unless a share of a whole GPU takes less; the one that the job named itself stays."""
    candidates, needs = case.candidates, case.needs.needs
    if not any(kind.profile for kind in candidates.kinds):
        return None
    from slurm_gpumem.submission.share.instances import smallest_instance

    share_mib = None
    if _undivided(case) is None and _too_busy(case) is None:
        pairs = [(kind, need) for kind, need in zip(candidates.kinds, needs) if kind.units]
        if fits_somewhere([kind for kind, _ in pairs], [need for _, need in pairs]):
            share_mib = case.plan._replace(largest=case.largest, request=_request(case)).reserved_mib
    found = smallest_instance(candidates.kinds, needs, share_mib=share_mib)
    if found is not None and case.asked.gpus.gpus and case.asked.gpus.gpu_type:
        return Keep(f"it asks for {case.asked.gpus.gpu_type}, which holds it")
    return Instance(found) if found is not None else None


def _undivided(case: Case) -> Optional[Verdict]:
    """No GPU in reach can be shared."""
    gres, kinds = case.policy.gres, case.candidates.kinds
    if not any(kind.units for kind in kinds):
        return Whole(f"partition {case.candidates.names} has no {gres}{'s' if gres == 'shard' else ''}")
    if gres == "mps" and not any(kind.units and kind.memory_mib for kind in kinds):
        labels = ", ".join(sorted({kind.label for kind in kinds}))
        return Whole(
            f"the memory of {labels} is not known (gpumem-gpus.toml beside the site's gpumem.toml can say it)"
        )
    return None


def _too_busy(case: Case) -> Optional[Verdict]:
    activity = case.largest.activity
    if not activity or not needs_whole_gpu(case.candidates.kinds, case.needs.needs):
        return None
    return Whole(f"while sharing, a slowdown of {activity.limit:g} is out of reach", replaces=True)


def _share(case: Case) -> Verdict:
    request, nodes = _request(case), case.asked.nodes
    more = f", on each of {nodes} nodes" if nodes > 1 else ""
    return Share(request._replace(reason=f"{request.reason}{more}"))


RULES = (
    _observed,
    _own_shards,
    _asked_for,
    _several_gpus,
    _custom_forward,
    _too_large,
    _instance,
    _undivided,
    _too_busy,
    _share,
)


def _part(case: Case, request: GpuRequest) -> Plan:
    """The plan with a part of a GPU; where its type is named, with the need on that type."""
    plan, types = case.plan, [kind.gpu_type for kind in case.candidates.kinds]
    if request.gpu_type and request.gpu_type in types and not case.candidates.gpu_type:
        on = case.needs.on[types.index(request.gpu_type)]
        plan = case._replace(largest=on).plan
    return plan._replace(request=request, host=_host(plan, case.candidates, request))


def _whole(case: Case, verdict: Whole) -> Plan:
    """The plan with a whole GPU: of those that hold the job, all shards of one, or as the job asked."""
    asked, candidates, needs = case.asked, case.candidates, case.needs.needs
    plan = case.plan
    narrowed, note = _narrowed(case, verdict.reason)
    plan = plan._replace(warnings=(*plan.warnings, *verdict.warnings, *((note,) if note else ())))
    if narrowed is not None:
        return plan._replace(request=narrowed)
    if verdict.replaces or (asked.settings.exclusive_gpu and not asked.gpus.keep_whole):
        request = whole_gpu(
            candidates.kinds,
            needs,
            case.policy,
            gpu_type=candidates.gpu_type,
            gpu_keeps_off_shards=candidates.gpu_keeps_off_shards,
            reason=verdict.reason,
        )
        return plan._replace(request=request, host=_host(plan, candidates, request))
    if asked.gpus.gpus:
        return plan._replace(kept_because=verdict.reason)
    gpu_type = candidates.gpu_type or type_of_whole(candidates.kinds, needs)
    request = GpuRequest(gres_word("gpu", gpu_type, 1), 0, 0, gpu_type, True, verdict.reason)
    return plan._replace(request=request, host=_host(plan, candidates, request))


def _request(case: Case) -> GpuRequest:
    kinds, needs = case.candidates.kinds, case.needs.needs
    return share_gpu(kinds, needs, case.policy, gpu_type=case.candidates.gpu_type)


def _host(plan: Plan, candidates: CandidateGpus, request: GpuRequest) -> HostShare:
    """CPUs and host memory of a share, the CPUs by what the job's earlier runs used where any did."""
    asked, policy = plan.asked, plan.asked.config.sharing
    estimate = plan.largest.estimate if plan.largest else None
    fingerprint = plan.workload.fingerprint
    if not fingerprint or not estimate or names_cpus(asked.options):
        return host_share(request, candidates.kinds, policy, named_cpus=named_cpus(asked.options))
    from slurm_gpumem.estimators.remembered import cpus_of_runs

    job = None if plan.workload.script else estimate.job
    runs = [run for gpu in candidates.gpus for run in cpus_of_runs(fingerprint, job, gpu)]
    return host_share(request, candidates.kinds, policy, runs)


def _narrowed(case: Case, reason: str) -> Tuple[Optional[GpuRequest], str]:
    """A whole GPU of those that hold the job, where --gpu any asks for it and others are in reach; a note.

    A share needs none of this: it is larger than the GPUs that do not hold the job.
    """
    asked, candidates = case.asked, case.candidates
    divided = any(kind.units for kind in candidates.kinds) and not candidates.gpu_keeps_off_shards
    named = candidates.gpu_type or asked.gpus.gpu_type or asked.gpus.keep_whole
    if named or divided or len(candidates.kinds) < 2 or case.plan.largest is None:
        return None, ""
    from slurm_gpumem.submission.share.types_that_fit import narrow, sides

    found = sides(candidates.kinds, case.needs.needs)
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


def _several(case: Case) -> bool:
    return case.workload.job is not None and case.workload.job.gpus > 1


def _no_shapes(case: Case) -> str:
    option = case.asked.settings.spelled("input")
    return f"the summary shows no shapes, so its peak is not estimated ({option} 3x224x224 says its input)"


def _why_whole(case: Case) -> str:
    """Why the job is to have whole GPUs, as it asked or its partition gives them; "" when it may share."""
    asked = case.asked
    if asked.gpus.keep_whole:
        return asked.gpus.keep_whole
    if case.candidates.whole_nodes:
        return f"partition {case.candidates.whole_nodes} gives whole nodes"
    return f"as {asked.settings.spelled('exclusive-gpu')} asks" if asked.settings.exclusive_gpu else ""


# The answer no: the job is too large for every GPU in reach, and what would fit instead.


def does_not_fit(asked: Submission, workload: Workload, candidates: CandidateGpus, largest: NeedOnGpu) -> str:
    """Which GPU is too small, and which batch size or precision would be small enough."""
    kind = largest_kind(candidates.kinds)
    assert kind is not None
    assert kind.memory_mib is not None
    size = format_mib(kind.memory_mib).replace(".0 ", " ")
    peak = format_mib(largest.need.peak_mib)
    lines = [
        f"{'peak ' if largest.estimate else ''}{peak} does not fit the largest GPU of partition "
        f"{candidates.names} ({kind.label}, {size})."
    ]
    if workload.summary and largest.estimate:
        lines.append(_advice(workload.summary, largest.gpu, largest.estimate, kind.memory_mib))
    alone = asked.settings.spelled("exclusive-gpu")
    return "\n".join([*filter(None, lines), f"Nothing was submitted. Use {alone} to try anyway."])


def _advice(summary: ModelSummary, gpu: Gpu, estimate: Estimate, limit_mib: int) -> str:
    again = registry.same_way(estimate, summary, gpu)
    job, found = estimate.job, []
    batch = largest_that_fits(job, again, limit_mib)
    if batch:
        found.append(f"Batch {batch} would fit.")
    amp = alternatives(estimate, gpu, again).amp
    if amp:
        needs = format_mib(amp.peak_mib)
        found.append(f"AMP (--precision {amp.job.precision}) would need {needs} at batch {job.batch_size}.")
    return " ".join(found)
