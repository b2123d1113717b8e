"""The GPUs to estimate for where nobody names one: those of the cluster, else an assumed one, with a note."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.config.load import Config
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.estimators.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.slurm.state.nodes import discover_cluster
from slurm_gpumem.submission.candidate_gpus import gpu_kinds
from slurm_gpumem.submission.job.settings import ANY_GPU

_TIMEOUT_S = 1.0
"""An estimate needs no cluster; one that does not answer at once is not waited for."""


class ChosenGpus(NamedTuple):
    """The GPUs to answer for, the most frequent first, and what to know of the choice."""

    gpus: Tuple[Gpu, ...]
    notes: Tuple[str, ...] = ()


def choose_gpu(named: Optional[str], config: Config, shard_mib: Optional[int] = None) -> ChosenGpus:
    """One GPU: the one named, else the most frequent of the cluster's default partition, else DEFAULT_GPU.

    What jobs can use of it is counted in whole shards, of `shard_mib` or as the site has them.
    """
    size = shard_mib or config.sharing.shard_mib
    if named and named.lower() != ANY_GPU:
        return ChosenGpus((find_gpu(named).in_shards(size),))
    gpus = cluster_gpus(config)
    if not gpus:
        assumed = f"no cluster answers here, so a GPU of type {DEFAULT_GPU} is assumed; --gpu names another"
        return ChosenGpus((find_gpu(DEFAULT_GPU).in_shards(size),), (assumed,))
    others = [gpu.name for gpu in gpus[1:]]
    note = f"for {gpus[0].name}, the most frequent GPU here; --gpu names another: {', '.join(others)}"
    return ChosenGpus(gpus[:1], (note,) if others else ())


def cluster_gpus(config: Config) -> Tuple[Gpu, ...]:
    """The kinds of GPUs of the default partition (of all, where it has none); empty where nobody answers."""
    try:
        cluster, _ = discover_cluster(timeout_s=_TIMEOUT_S)
    except SlurmError:
        return ()
    default = [cluster.default_partition] if cluster.default_partition else []
    groups = cluster.in_partitions(default) or cluster.gpu_nodes
    kinds, models = gpu_kinds(groups, config.sharing, None)
    found: Dict[Tuple[str, int], int] = {}
    by_key: Dict[Tuple[str, int], Gpu] = {}
    for kind, gpu in zip(kinds, (model.gpu for model in models)):
        key = (gpu.name, gpu.memory_mib)
        found[key] = found.get(key, 0) + kind.gpus
        by_key[key] = gpu
    ordered: List[Tuple[str, int]] = sorted(found, key=lambda key: -found[key])
    return tuple(by_key[key] for key in ordered)
