"""What a job needs on each GPU in reach: its memory, estimated or given, and its share of the GPU's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.submission.candidate_gpus import CandidateGpus, GpuModel
from slurm_gpumem.submission.share.request import Need
from slurm_gpumem.submission.submission import Submission, Workload

if TYPE_CHECKING:
    from slurm_gpumem.estimators.types import Estimate, Gpu, Utilization

    # Only where a slowdown limit counts.
    from slurm_gpumem.submission.share.activity import Activity


class NeedOnGpu(NamedTuple):
    """What the job needs on one kind of GPU, and where the numbers come from."""

    model: GpuModel
    need: Need
    estimate: Optional[Estimate] = None
    """None where the memory was given by hand, or nothing is known of it."""
    activity: Optional[Activity] = None
    """What the accepted slowdown makes of the job's activity; None where it does not count."""

    @property
    def gpu(self) -> Gpu:
        """Its entry of the GPU table."""
        return self.model.gpu


class Needs(NamedTuple):
    """What the job needs on each kind in reach, in their order."""

    on: Tuple[NeedOnGpu, ...]
    warnings: Tuple[str, ...] = ()

    @property
    def needs(self) -> Tuple[Need, ...]:
        """The bare numbers."""
        return tuple(one.need for one in self.on)

    @property
    def largest(self) -> NeedOnGpu:
        """Where the job needs most: this is reported, and recorded in the job's comment."""
        return max(self.on, key=lambda one: one.need.request_mib)


def estimate_needs(asked: Submission, workload: Workload, candidates: CandidateGpus) -> Needs:
    """Estimate the job on every kind of GPU in reach."""
    coverage = asked.settings.coverage or asked.config.sharing.coverage_in(candidates.partitions)
    estimates = _estimates(asked, workload, candidates, coverage)
    warnings: List[str] = _unused_coverage(asked, workload)
    if workload.summary and workload.job:
        warnings += asked.settings.remarks()
    activities, more = _activities(asked, workload, candidates, estimates)
    on = tuple(
        # Nobody is beside a job on a MIG instance; whether it has enough multiprocessors is asked instead.
        _on_instance(asked, workload, candidates, model, estimate)
        if kind.profile
        else NeedOnGpu(model, _need(estimate, workload.mem_mib, activity), estimate, activity)
        for kind, model, estimate, activity in zip(candidates.kinds, candidates.models, estimates, activities)
    )
    return _of_all_processes(asked, Needs(on, (*warnings, *more)))


def _of_all_processes(asked: Submission, needs: Needs) -> Needs:
    """The need of a job whose launcher starts several processes on its one GPU: of all of them together."""
    if (
        not any(one.estimate for one in needs.on)
        or asked.script is None
        or not any(word in asked.script_text for word in ("nproc", "num_", "num-"))
    ):
        return needs
    from slurm_gpumem.estimators import remembered
    from slurm_gpumem.submission.job.launcher import ranks_on_one_gpu

    processes, notes = ranks_on_one_gpu(asked)
    # Earlier runs were measured with all of their processes.
    estimated = [one.estimate is not None and one.estimate.estimator != remembered.NAME for one in needs.on]
    on = tuple(
        one._replace(need=one.need.times(processes)) if by_estimate else one
        for one, by_estimate in zip(needs.on, estimated)
    )
    return Needs(on, (*needs.warnings, *(notes if any(estimated) else ())))


def _unused_coverage(asked: Submission, workload: Workload) -> List[str]:
    """That a coverage which the job states changes nothing, where something else decides its memory."""
    if asked.settings.coverage is None or workload.summary is not None:
        return []
    decides = "what earlier runs measured" if workload.script else "the GPU memory given by hand"
    return [f"coverage has no effect: {decides}, decides"]


def _activities(
    asked: Submission, workload: Workload, candidates: CandidateGpus, estimates: Sequence[Optional[Estimate]]
) -> Tuple[Sequence[Optional[Activity]], Sequence[str]]:
    """What the job's activity takes on each kind, and warnings; nothing where no slowdown limit counts."""
    own, policy = asked.settings.max_slowdown, asked.config.sharing
    if own is None and policy.slowdown_in(candidates.partitions) is None:
        return [None] * len(estimates), ()
    from slurm_gpumem.submission.share.activity import weigh_activity

    if workload.run_key:
        from slurm_gpumem.accounting.new_runs import note_new_runs

        note_new_runs()
    used = [_utilization(asked, workload, gpu, one) for gpu, one in zip(candidates.gpus, estimates)]
    return weigh_activity(used, own, candidates.partitions, policy)


def _utilization(
    asked: Submission, workload: Workload, gpu: Gpu, estimate: Optional[Estimate]
) -> Optional[Utilization]:
    """The job's activity: predicted, as earlier runs of its script showed it, or what the site assumes."""
    if estimate is not None and estimate.utilization is not None:
        return estimate.utilization
    key, assumed = workload.script or workload.run_key, asked.config.sharing.unknown_activity
    percents: Sequence[int] = ()
    if workload.measured is not None:
        percents = () if workload.measured.activity is None else (workload.measured.activity,)
    elif key:
        from slurm_gpumem.estimators.remembered import activity_of_script

        percents = activity_of_script(key, gpu)
    if not percents and assumed is None:
        return None
    from slurm_gpumem.utilization.interference import usual_utilization

    if percents:
        return usual_utilization(sorted(percents)[len(percents) // 2] / 100, "remembered")
    return usual_utilization(assumed or 0.0, "assumed")


def _need(estimate: Optional[Estimate], by_hand_mib: Optional[int], activity: Optional[Activity]) -> Need:
    share = activity.share if activity else 0.0
    if estimate is None:
        return Need(by_hand_mib or 0, by_hand_mib or 0, share)
    return Need(estimate.peak_mib, max(estimate.request_mib, estimate.peak_mib), share)


def _on_instance(
    asked: Submission,
    workload: Workload,
    candidates: CandidateGpus,
    model: GpuModel,
    estimate: Optional[Estimate],
) -> NeedOnGpu:
    """The need on a MIG instance: too slow where steps take longer than accepted beside the whole GPU's."""
    need = _need(estimate, workload.mem_mib, None)
    own, site = asked.settings.max_slowdown, asked.config.sharing.slowdown_in(candidates.partitions)
    limit = site if own is None else own
    used = estimate.utilization if estimate else None
    if limit is None or estimate is None or used is None or workload.summary is None:
        return NeedOnGpu(model, need, estimate)
    from slurm_gpumem.estimators.gpus import find_gpu
    from slurm_gpumem.utilization.predict import with_utilization

    whole = with_utilization(estimate, find_gpu(model.gpu.entry), workload.summary).utilization
    slow = whole is not None and used.step_seconds > limit * whole.step_seconds
    return NeedOnGpu(model, need._replace(too_slow=slow), estimate)


def _estimates(
    asked: Submission, workload: Workload, candidates: CandidateGpus, coverage: Optional[float]
) -> Sequence[Optional[Estimate]]:
    """An estimate for every kind of GPU; where the same job has run there often enough, what it measured."""
    summary, job = workload.summary, workload.job
    run = workload.measured
    if run is not None:
        from slurm_gpumem.estimators.remembered import of_run

        return [of_run(run.gpu, run.peak_mib, gpu) for gpu in candidates.gpus]
    if workload.script:
        from slurm_gpumem.estimators.remembered import of_script

        return [of_script(workload.script, gpu) for gpu in candidates.gpus]
    if summary is None or job is None:
        return [None for _ in candidates.models]
    gpus = candidates.gpus
    from slurm_gpumem.estimators import remembered
    from slurm_gpumem.submission.kept_estimates import estimate_once

    name = asked.settings.text("estimator") or "auto"
    if name not in ("auto", remembered.NAME):
        return [estimate_once(name, summary, job, gpu, coverage) for gpu in gpus]
    from slurm_gpumem.accounting.new_runs import note_new_runs

    note_new_runs()
    # What a trace did not come to, the first run has shown.
    least = remembered.ENOUGH_RUNS if name == "auto" and not workload.unfinished else 1
    found: List[Estimate] = []
    for gpu in gpus:
        peaks = remembered.recall(summary, job, gpu)
        if len(peaks) >= least:
            from slurm_gpumem.utilization.predict import with_utilization

            measured = remembered.from_peaks(summary, job, gpu, peaks)
            found.append(with_utilization(measured, gpu, summary))
        else:
            found.append(estimate_once(name, summary, job, gpu, coverage))
    return [
        as_active_as_before(one, remembered.recall_activity(summary, job, gpu))
        for one, gpu in zip(found, gpus)
    ]


def as_active_as_before(estimate: Estimate, percents: Sequence[int]) -> Estimate:
    """The estimate with the activity that earlier runs showed alone, in place of the predicted one."""
    predicted = estimate.utilization
    if predicted is None or not percents:
        return estimate

    middle = float(sorted(percents)[len(percents) // 2])
    seen = {**predicted.intervals, "sm_active": (float(min(percents)), float(max(percents)))}
    measured = predicted._replace(sm_active=middle, intervals=seen, source="remembered")
    return estimate._replace(utilization=measured)
