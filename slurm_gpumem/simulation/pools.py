"""The GPUs behind a history: nodes that the same jobs could have used, found from the jobs themselves."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.simulation.types import Fleet, max_watts
from slurm_gpumem.slurm.state.history import PastJob
from slurm_gpumem.slurm.state.nodes import GpuNodes

_SHARD_MIB = 1024


class Pool(NamedTuple):
    """Nodes with the same GPUs, and the jobs that ran on them."""

    fleet: Fleet
    jobs: Tuple[PastJob, ...]
    gpu_type: Optional[str]
    """As Slurm has it; None where the site gave none."""
    counted: bool
    """Whether the cluster itself told the number of GPUs, or its jobs let it be seen."""
    known: bool = True
    """Whether the GPU's type or its memory is known, or the largest GPU's memory was assumed."""

    @property
    def mig(self) -> bool:
        """Whether its GPUs are MIG instances, which Slurm does not share further."""
        return profile_name(self.gpu_type) is not None


def find_pools(
    jobs: Sequence[PastJob], known: Sequence[GpuNodes] = (), gpu_mib: Optional[int] = None
) -> List[Pool]:
    """The largest first. `known` are the cluster's nodes; `gpu_mib` is the GPUs' memory where it is known.

    Nodes belong together when a partition has both and their GPUs are of one type. Where the cluster is not
    at hand, a node has as many GPUs as jobs ever had there at a time.
    """
    types: Dict[str, Counter[Optional[str]]] = {}
    for job in jobs:
        for node in job.nodes or ("",):
            types.setdefault(node, Counter())[job.gpu_type] += 1
    kind_of = {node: counts.most_common(1)[0][0] for node, counts in types.items()}
    leader: Dict[Tuple[str, Optional[str]], Tuple[str, Optional[str]]] = {}

    def find(key: Tuple[str, Optional[str]]) -> Tuple[str, Optional[str]]:
        leader.setdefault(key, key)
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    for job in jobs:
        for node in job.nodes or ("",):
            kind = kind_of[node]
            leader[find((f"node {node}", kind))] = find((f"partition {job.partition}", kind))
    members: Dict[Tuple[str, Optional[str]], List[PastJob]] = {}
    for job in jobs:
        node = (job.nodes or ("",))[0]
        members.setdefault(find((f"node {node}", kind_of[node])), []).append(job)
    pools = [_pool(found, kind_of, known, gpu_mib) for found in members.values()]
    return sorted(pools, key=lambda pool: -pool.fleet.gpus)


def _pool(
    jobs: Sequence[PastJob],
    kind_of: Dict[str, Optional[str]],
    known: Sequence[GpuNodes],
    gpu_mib: Optional[int],
) -> Pool:
    partitions = {job.partition for job in jobs}
    gpu_type = kind_of[(jobs[0].nodes or ("",))[0]]
    groups = [
        group
        for group in known
        if partitions & set(group.partitions) and gpu_type in (None, group.gpu_type) and group.gpus
    ]
    most = _most_at_a_time(jobs)
    per_node = max(group.gpus for group in groups) if groups else max(most.values())
    total = sum(group.gpus * group.nodes for group in groups) or sum(most.values())
    total = max(total, max(job.gpus for job in jobs))
    if gpu_type is None and groups:
        # Accounting without types: the nodes know theirs.
        gpu_type = max(groups, key=lambda group: group.gpus * group.nodes).gpu_type
    gpu = closest_gpu(gpu_type, gpu_mib)
    fleet = Fleet(
        nodes=-(-total // per_node),
        gpus_per_node=per_node,
        memory_mib=gpu.memory_mib // _SHARD_MIB * _SHARD_MIB,
        name=gpu.name,
        max_watts=max_watts(gpu.entry or gpu.name),
    )
    known_gpu = bool(gpu.entry) or gpu_mib is not None
    return Pool(fleet, tuple(jobs), gpu_type, bool(groups), known_gpu)


def _most_at_a_time(jobs: Sequence[PastJob]) -> Dict[str, int]:
    """By node: the most GPUs that jobs had there at one moment."""
    changes: List[Tuple[float, int, str]] = []
    for job in jobs:
        nodes = job.nodes or ("",)
        each = -(-job.gpus // len(nodes))
        for node in nodes:
            changes += [(job.start, each, node), (job.end, -each, node)]
    # At one moment, what ends goes before what starts.
    changes.sort(key=lambda change: (change[0], change[1]))
    now: Dict[str, int] = {}
    most: Dict[str, int] = {}
    for _, count, node in changes:
        now[node] = now.get(node, 0) + count
        most[node] = max(most.get(node, 1), now[node])
    return most
