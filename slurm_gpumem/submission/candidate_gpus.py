"""Which GPUs a job may land on, as Slurm describes them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.slurm.state.nodes import WHOLE_GPU_BESIDE_SHARDS, Cluster, GpuNodes, discover_cluster
from slurm_gpumem.submission.share.request import GpuKind
from slurm_gpumem.submission.submission import Submission

if TYPE_CHECKING:
    # The GPU table is read where an estimate needs it: not for a job that names its memory by hand.
    from slurm_gpumem.estimators.types import Gpu


class _Named(NamedTuple):
    gpu_type: Optional[str]
    """Slurm's type."""
    memory_mib: Optional[int] = None
    """What its shards stand for; None where nobody knows."""
    by_name: Optional[str] = None
    """The GPU that the job names, which counts more."""


class GpuModel(_Named):
    """A kind of GPU as an estimate looks for it in the table, which it does once."""

    @cached_property
    def gpu(self) -> Gpu:
        """Its entry of the GPU table, or the one closest to it."""
        from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu

        return find_gpu(self.by_name) if self.by_name else closest_gpu(self.gpu_type, self.memory_mib)


class CandidateGpus(NamedTuple):
    """The GPUs that a job may land on."""

    partitions: Tuple[str, ...]
    kinds: Tuple[GpuKind, ...] = ()
    """None at all where sbatch will refuse the job, in its own words: see `empty`."""
    models: Tuple[GpuModel, ...] = ()
    """For the estimate, one for each kind."""
    groups: Tuple[GpuNodes, ...] = ()
    """The nodes that have them."""
    gpu_type: Optional[str] = None
    """The one Slurm type that the job is bound to."""
    whole_nodes: Optional[str] = None
    """A partition of these that gives whole nodes."""
    gpu_keeps_off_shards: bool = False
    """Whether Slurm keeps gpu:1 jobs and shard jobs apart (`WHOLE_GPU_BESIDE_SHARDS`)."""
    empty: str = ""
    """Why no GPU is in reach."""
    warnings: Tuple[str, ...] = ()

    @property
    def gpus(self) -> Tuple[Gpu, ...]:
        """Their entries of the GPU table, one for each kind."""
        return tuple(model.gpu for model in self.models)

    @property
    def names(self) -> str:
        """The partitions for messages."""
        return ", ".join(self.partitions)


def find_candidates(asked: Submission) -> CandidateGpus:
    """The GPUs of the job's partitions, of the type that it names; UsageError when there are none at all."""
    wanted = [name for name in (asked.options.get("partition") or "").split(",") if name]
    cluster, warnings = _cluster(asked, wanted)
    partitions = tuple(wanted) or cluster.default_partitions
    candidates = CandidateGpus(partitions, warnings=warnings)
    if not set(partitions) & set(cluster.partitions):
        return candidates._replace(empty=f"Slurm knows no partition {candidates.names}")
    groups: Sequence[GpuNodes] = cluster.in_partitions(partitions)
    if not groups:
        raise UsageError(_no_gpus(candidates, cluster))
    gpu_type, by_name = asked.gpus.gpu_type, asked.settings.gpu
    if gpu_type and gpu_type not in {group.gpu_type for group in groups}:
        return candidates._replace(empty=f"partition {candidates.names} has no GPU of type {gpu_type}")
    if gpu_type is None and by_name is not None:
        gpu_type, missing = _slurm_type(groups, by_name)
        types = sorted({group.gpu_type for group in groups if group.gpu_type})
        if missing and all(GpuModel(name).gpu.entry for name in types):
            # Where a type is not known, the name says what it is.
            its = ", ".join(types)
            more = f"partition {candidates.names} has no {by_name}: the estimate is for its {its}"
            candidates, by_name = candidates._replace(warnings=(*warnings, more)), None
    if gpu_type:
        groups = [group for group in groups if group.gpu_type == gpu_type]
    known = [group for group in groups if not _unknown_profile(group)]
    if len(known) < len(groups):
        said = _unknown_profiles(candidates, [group for group in groups if group not in known])
        if not known and asked.gpus.gpus:
            return candidates._replace(empty=said)
        if not known:
            raise UsageError(f"{said}.\nNothing was submitted.")
        candidates = candidates._replace(warnings=(*candidates.warnings, f"{said}; it is left out"))
    kinds, models = gpu_kinds(known, asked.config.sharing, by_name)
    return candidates._replace(
        kinds=kinds,
        models=models,
        groups=tuple(known),
        gpu_type=gpu_type,
        whole_nodes=next((name for name in partitions if name in cluster.exclusive_partitions), None),
        gpu_keeps_off_shards=cluster.version >= WHOLE_GPU_BESIDE_SHARDS,
    )


def _cluster(asked: Submission, wanted: Sequence[str]) -> Tuple[Cluster, Tuple[str, ...]]:
    clusters = asked.options.get("clusters")
    cluster, warnings = discover_cluster(clusters)
    if set(wanted) - set(cluster.partitions):
        # The partition may be newer than our cached answer.
        cluster, _ = discover_cluster(clusters, max_age_s=0)
    return cluster, warnings


def _no_gpus(candidates: CandidateGpus, cluster: Cluster) -> str:
    having = sorted({name for group in cluster.gpu_nodes for name in group.partitions})
    return (
        f"partition {candidates.names} has no GPUs.\n"
        f"Partitions with GPUs: {', '.join(having) or 'none'}. Choose one with --partition.\n"
        "Nothing was submitted."
    )


def _unknown_profile(group: GpuNodes) -> bool:
    return profile_name(group.gpu_type) is not None and not GpuModel(group.gpu_type).gpu.entry


def _unknown_profiles(candidates: CandidateGpus, groups: Sequence[GpuNodes]) -> str:
    names = ", ".join(sorted({group.gpu_type or "" for group in groups}))
    return (
        f"partition {candidates.names} has MIG profile {names}, whose memory is not known "
        f'(["{groups[0].gpu_type}"] memory_mib in gpumem-gpus.toml can say it)'
    )


def _slurm_type(groups: Sequence[GpuNodes], gpu: str) -> Tuple[Optional[str], bool]:
    """The one Slurm type that a GPU's name means here, and whether there are types but none is meant."""
    from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu

    types = {group.gpu_type for group in groups if group.gpu_type}
    entry = find_gpu(gpu).name
    matching = [name for name in types if name.lower() == gpu.lower()]
    matching = matching or [name for name in types if closest_gpu(name, None).entry == entry]
    return (matching[0] if len(matching) == 1 else None), bool(types) and not matching


def gpu_kinds(
    groups: Sequence[GpuNodes], policy: SharingPolicy, gpu: Optional[str]
) -> Tuple[Tuple[GpuKind, ...], Tuple[GpuModel, ...]]:
    """Nodes whose GPUs are alike become one kind, with the least that any of its nodes has."""
    kinds: Dict[Tuple[Optional[str], int], GpuKind] = {}
    models: Dict[Tuple[Optional[str], int], GpuModel] = {}
    for group in groups:
        profile = profile_name(group.gpu_type) or ""
        # Shares without a type are spread over all of a node's GPUs; beside whole ones they are theirs.
        units = 0 if profile and group.gpus < group.node_gpus else group.units_per_gpu(policy.gres)
        by_shards = units * policy.shard_mib if units and policy.gres == "shard" else None
        key = (group.gpu_type, units)
        models[key] = GpuModel(group.gpu_type, by_shards, gpu)
        kind = GpuKind(
            gpu_type=group.gpu_type,
            units=units,
            memory_mib=by_shards or _memory_in_table(group.gpu_type),
            gpus=group.gpus * group.nodes,
            cpus_per_gpu=group.cpus / group.node_gpus,
            threads_per_core=group.threads_per_core,
            host_mib_per_gpu=group.memory_mib // group.node_gpus,
            profile=profile,
            sms=(GpuModel(group.gpu_type).gpu.sms or 0) if profile else 0,
        )
        before = kinds.get(key)
        kinds[key] = kind if before is None else _least(before, kind)
    return tuple(kinds.values()), tuple(models.values())


def _memory_in_table(gpu_type: Optional[str]) -> Optional[int]:
    like = GpuModel(gpu_type).gpu
    return like.memory_mib if like.entry else None


def _least(one: GpuKind, other: GpuKind) -> GpuKind:
    return one._replace(
        gpus=one.gpus + other.gpus,
        cpus_per_gpu=min(one.cpus_per_gpu, other.cpus_per_gpu),
        threads_per_core=max(one.threads_per_core, other.threads_per_core),
        host_mib_per_gpu=min(one.host_mib_per_gpu, other.host_mib_per_gpu),
    )
