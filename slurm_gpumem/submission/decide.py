"""What a job asks of Slurm: estimate it on every GPU it may land on, then share one or keep it whole."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import Config
from slurm_gpumem.errors import DoesNotFitError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu
from slurm_gpumem.estimators.training_job import training_job
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.slurm.gpu_options import GpuWish, Wishes
from slurm_gpumem.slurm.nodes import WHOLE_GPU_BESIDE_SHARDS, Cluster, GpuNodes, discover_cluster
from slurm_gpumem.submission.activity import Activity, estimated, weigh_activity
from slurm_gpumem.submission.request import (
    Need,
    fits_somewhere,
    host_share,
    largest_kind,
    needs_whole_gpu,
    share_gpu,
    whole_gpu,
)
from slurm_gpumem.submission.settings import JobSettings
from slurm_gpumem.submission.types import GpuKind, GpuRequest, HostShare
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import format_mib


class Decision(NamedTuple):
    """What is asked of Slurm for a job, and all that led to it."""

    request: Optional[GpuRequest]
    """None: the job's own GPU options stay as they are."""
    host: HostShare
    reason: str
    """Why the job's own GPU options stay; empty when `request` says why."""
    need: Optional[Need] = None
    estimate: Optional[Estimate] = None
    summary: Optional[ModelSummary] = None
    gpu: Optional[Gpu] = None
    warnings: Tuple[str, ...] = ()
    fingerprint: Optional[str] = None
    """The model's, where one is known."""
    by_line: bool = False
    """The estimate is the memory line's."""
    activity: Optional[Activity] = None
    """What the accepted slowdown makes of the job's activity; None where it does not count."""

    @property
    def shared(self) -> bool:
        """Whether shards (or mps units) are asked for, be it all of a GPU's."""
        return self.request is not None and self.request.units > 0


class _Reach(NamedTuple):
    """The GPUs a job may land on."""

    cluster: Cluster
    partitions: Tuple[str, ...]
    kinds: Tuple[GpuKind, ...]
    gpus: Tuple[Gpu, ...]
    """For the estimate, one for each kind."""
    gpu_type: Optional[str]
    """The one Slurm type the job is bound to."""


def decide(settings: JobSettings, wishes: Wishes, wish: GpuWish, config: Config) -> Decision:
    """What to ask for; DoesNotFitError when no GPU in reach is large enough."""
    summary = _read_summary(settings.model)
    line = settings.memory_line
    job = training_job(summary, settings.stated_training(), gpus=max(wish.gpus, 1)) if summary else None
    if settings.gpu:
        find_gpu(settings.gpu)  # an unknown name is an error before Slurm is asked anything
    settings.on_oom  # noqa: B018 - the same
    reach, warnings = _reach(settings, wishes, wish, config)
    if reach is None:
        # sbatch refuses it, in its own words.
        return Decision(None, HostShare(0, 0), warnings.pop(), warnings=tuple(warnings))
    estimates: List[Optional[Estimate]] = [None for _ in reach.gpus]
    if summary and job:
        estimates = [*_estimates(settings.text("estimator") or "auto", summary, job, reach.gpus)]
        stale = settings.stale_line(summary.fingerprint, job)
        warnings += [stale] if stale else []
    elif line:
        batch = settings.line_batch(line)
        estimates = [line.estimate(batch, gpu) for gpu in reach.gpus]
    shares, said = weigh_activity(estimates, settings.max_slowdown, reach.partitions, config.sharing)
    warnings += said
    needs = [
        _need(estimate, settings.mem_mib, share.share if share else 0.0)
        for estimate, share in zip(estimates, shares)
    ]
    worst = max(range(len(needs)), key=lambda at: needs[at].request_mib)
    chosen = estimates[worst]
    known = Decision(
        request=None,
        host=HostShare(0, 0),
        reason="",
        need=needs[worst] if needs[worst].request_mib else None,
        estimate=chosen,
        summary=summary,
        gpu=reach.gpus[worst],
        fingerprint=summary.fingerprint if summary else line.fingerprint if line else None,
        by_line=line is not None,
        warnings=(*warnings, *(chosen.warnings if chosen else ())),
        activity=shares[worst],
    )
    if config.sharing.mode == "observe":
        return known._replace(reason="the site only observes (sharing.mode)")
    if wish.shared_gres:
        return known._replace(reason=f"its own --gres={wish.shared_gres} stays")
    keep = _keep_whole(settings, wish, reach)
    if keep:
        return _whole(known, settings, wish, reach, needs, config, keep)
    if not fits_somewhere(reach.kinds, needs):
        raise DoesNotFitError(_too_big(known, reach, job))
    unshared = _not_shareable(reach, config)
    if unshared:
        return _whole(known, settings, wish, reach, needs, config, unshared)
    activity = shares[worst]
    if activity and needs_whole_gpu(reach.kinds, needs):
        request = whole_gpu(
            reach.kinds,
            needs,
            config.sharing,
            gpu_type=reach.gpu_type,
            gpu_keeps_off_shards=reach.cluster.version >= WHOLE_GPU_BESIDE_SHARDS,
            reason=f"beside others a slowdown of {activity.limit:g} is out of reach",
        )
        return known._replace(request=request, host=host_share(request, reach.kinds, config.sharing))
    request = share_gpu(reach.kinds, needs, config.sharing, gpu_type=reach.gpu_type)
    return known._replace(request=request, host=host_share(request, reach.kinds, config.sharing))


def _estimates(name: str, summary: ModelSummary, job: TrainingJob, gpus: Sequence[Gpu]) -> Sequence[Estimate]:
    """An estimate for every kind of GPU; where the same job has run there often enough, what it measured."""
    from slurm_gpumem.estimators import remembered

    if name not in ("auto", remembered.NAME):
        return [estimated(name, summary, job, gpu) for gpu in gpus]
    from slurm_gpumem.accounting.notice import note_new_runs
    from slurm_gpumem.utilization.predict import with_utilization

    note_new_runs()
    known = [remembered.recall(summary, job, gpu) for gpu in gpus]
    least = remembered.ENOUGH_RUNS if name == "auto" else 1
    return [
        with_utilization(remembered.from_peaks(summary, job, gpu, peaks), gpu, summary)
        if len(peaks) >= least
        else estimated(name, summary, job, gpu)
        for gpu, peaks in zip(gpus, known)
    ]


def _read_summary(path: Optional[str]) -> Optional[ModelSummary]:
    if path is None:
        return None
    from slurm_gpumem.summaries.reader import read_summary

    return read_summary(path)


def _need(estimate: Optional[Estimate], by_hand_mib: Optional[int], activity: float) -> Need:
    if estimate is None:
        return Need(by_hand_mib or 0, by_hand_mib or 0)
    return Need(estimate.peak_mib, max(estimate.request_mib, estimate.peak_mib), activity)


# -- The GPUs in reach -----------------------------------------------------------------------------


def _reach(
    settings: JobSettings, wishes: Wishes, wish: GpuWish, config: Config
) -> Tuple[Optional[_Reach], List[str]]:
    """The GPUs in reach, and warnings; None when there are none as the job wants them, the last says why."""
    clusters = wishes.get("clusters")
    asked = [name for name in (wishes.get("partition") or "").split(",") if name]
    cluster, said = discover_cluster(
        clusters, timeout_s=config.slurm.timeout_s, max_age_s=config.slurm.cache_s
    )
    warnings = list(said)
    if set(asked) - set(cluster.partitions):
        # It may be newer than what we know.
        cluster, said = discover_cluster(clusters, timeout_s=config.slurm.timeout_s, max_age_s=0)
    names = asked or ([cluster.default_partition] if cluster.default_partition else list(cluster.partitions))
    if not set(names) & set(cluster.partitions):
        return None, [*warnings, f"Slurm knows no partition {', '.join(names)}"]
    groups: Sequence[GpuNodes] = cluster.in_partitions(names)
    if not groups:
        having = sorted({name for group in cluster.gpu_nodes for name in group.partitions})
        raise UsageError(
            f"partition {', '.join(names)} has no GPUs.\n"
            f"Partitions with GPUs: {', '.join(having) or 'none'}. Choose one with --partition.\n"
            "Nothing was submitted."
        )
    types = {group.gpu_type for group in groups}
    if wish.gpu_type and wish.gpu_type not in types:
        return None, [*warnings, f"partition {', '.join(names)} has no GPU of type {wish.gpu_type}"]
    groups, gpu_type, more = _of_type(groups, wish.gpu_type, settings.gpu, names)
    kinds, gpus = _kinds(groups, config, settings.gpu)
    return _Reach(cluster, tuple(names), kinds, gpus, gpu_type), warnings + more


def _of_type(
    groups: Sequence[GpuNodes], asked: Optional[str], gpu: Optional[str], partitions: Sequence[str]
) -> Tuple[Sequence[GpuNodes], Optional[str], List[str]]:
    """The groups of the type that the GPU request or --gpu names."""
    types = {group.gpu_type for group in groups if group.gpu_type}
    if asked:
        return [group for group in groups if group.gpu_type == asked], asked, []
    if gpu is None:
        return groups, None, []
    entry = find_gpu(gpu).name
    matching = [name for name in types if name.lower() == gpu.lower()]
    matching = matching or [name for name in types if closest_gpu(name, None).entry == entry]
    if len(matching) == 1:
        return [group for group in groups if group.gpu_type == matching[0]], matching[0], []
    if matching or not types:
        return groups, None, []
    return (
        groups,
        None,
        [f"partition {', '.join(partitions)} has no {gpu}; the estimate is for one all the same"],
    )


def _kinds(
    groups: Sequence[GpuNodes], config: Config, gpu: Optional[str]
) -> Tuple[Tuple[GpuKind, ...], Tuple[Gpu, ...]]:
    """Nodes whose GPUs are alike become one kind, with the least that any of its nodes has."""
    kinds: Dict[Tuple[Optional[str], int], GpuKind] = {}
    gpus: Dict[Tuple[Optional[str], int], Gpu] = {}
    for group in groups:
        units = group.units_per_gpu(config.sharing.gres)
        by_shards = units * config.sharing.shard_mib if units and config.sharing.gres == "shard" else None
        key = (group.gpu_type, units)
        like = closest_gpu(group.gpu_type, by_shards)
        gpus[key] = find_gpu(gpu) if gpu else like
        kind = GpuKind(
            gpu_type=group.gpu_type,
            units=units,
            memory_mib=by_shards or (like.memory_mib if like.entry else None),
            gpus=group.gpus * group.nodes,
            cpus_per_gpu=group.cpus / group.node_gpus,
            threads_per_core=group.threads_per_core,
            host_mib_per_gpu=group.memory_mib // group.node_gpus,
        )
        before = kinds.get(key)
        kinds[key] = kind if before is None else _least(before, kind)
    return tuple(kinds.values()), tuple(gpus.values())


def _least(one: GpuKind, other: GpuKind) -> GpuKind:
    return one._replace(
        gpus=one.gpus + other.gpus,
        cpus_per_gpu=min(one.cpus_per_gpu, other.cpus_per_gpu),
        threads_per_core=max(one.threads_per_core, other.threads_per_core),
        host_mib_per_gpu=min(one.host_mib_per_gpu, other.host_mib_per_gpu),
    )


# -- Whole GPUs ------------------------------------------------------------------------------------


def _keep_whole(settings: JobSettings, wish: GpuWish, reach: _Reach) -> Optional[str]:
    if wish.keep_whole:
        return wish.keep_whole
    exclusive = [name for name in reach.partitions if name in reach.cluster.exclusive_partitions]
    if exclusive:
        return f"partition {exclusive[0]} gives whole nodes"
    return "as --exclusive-gpu asks" if settings.exclusive_gpu else None


def _not_shareable(reach: _Reach, config: Config) -> Optional[str]:
    names = ", ".join(reach.partitions)
    gres = config.sharing.gres
    if not any(kind.units for kind in reach.kinds):
        return f"partition {names} has no {gres}{'s' if gres == 'shard' else ''}"
    if gres == "mps" and not any(kind.units and kind.memory_mib for kind in reach.kinds):
        labels = ", ".join(sorted({kind.label for kind in reach.kinds}))
        return (
            f"the memory of {labels} is not known (gpumem-gpus.toml beside the site's gpumem.toml can say it)"
        )
    return None


def _whole(
    known: Decision,
    settings: JobSettings,
    wish: GpuWish,
    reach: _Reach,
    needs: Sequence[Need],
    config: Config,
    reason: str,
) -> Decision:
    if not settings.exclusive_gpu or wish.keep_whole:
        if wish.gpus:
            return known._replace(reason=reason)
        gres = f"gpu:{reach.gpu_type}:1" if reach.gpu_type else "gpu:1"
        return known._replace(request=GpuRequest(gres, 0, 0, reach.gpu_type, True, reason))
    request = whole_gpu(
        reach.kinds,
        needs,
        config.sharing,
        gpu_type=reach.gpu_type,
        gpu_keeps_off_shards=reach.cluster.version >= WHOLE_GPU_BESIDE_SHARDS,
        reason=reason,
    )
    return known._replace(request=request, host=host_share(request, reach.kinds, config.sharing))


def _too_big(known: Decision, reach: _Reach, job: Optional[TrainingJob]) -> str:
    """The answer no, and what would be a yes."""
    largest = largest_kind(reach.kinds)
    assert largest is not None
    assert largest.memory_mib is not None
    assert known.need is not None
    size = format_mib(largest.memory_mib).replace(".0 ", " ")
    what = f"peak {format_mib(known.need.peak_mib)}" if known.estimate else format_mib(known.need.peak_mib)
    lines = [
        f"{what} does not fit the largest GPU of partition {', '.join(reach.partitions)} "
        f"({largest.label}, {size})."
    ]
    if known.summary and job and known.gpu and known.estimate:
        advice = _advice(known.summary, job, known.gpu, known.estimate, largest.memory_mib)
        if advice:
            lines.append(advice)
    lines.append("Nothing was submitted. Use --exclusive-gpu to try anyway.")
    return "\n".join(lines)


def _advice(summary: ModelSummary, job: TrainingJob, gpu: Gpu, estimate: Estimate, limit_mib: int) -> str:
    from slurm_gpumem.estimators.whatif import alternatives, largest_batch

    def again(other: TrainingJob) -> Estimate:
        return registry.run(registry.for_other_jobs(estimate.estimator), summary, other, gpu)

    said = []
    batch = largest_batch(job, again, limit_mib)
    if batch:
        said.append(f"Batch {batch} would fit.")
    amp = alternatives(estimate, gpu, again).amp
    if amp:
        needs = format_mib(amp.peak_mib)
        said.append(f"AMP (--precision {amp.job.precision}) would need {needs} at batch {job.batch_size}.")
    return " ".join(said)
