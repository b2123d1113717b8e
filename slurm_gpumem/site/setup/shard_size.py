"""How much GPU memory a shard stands for, on a site that may have shards already.

What a site has stays: its users' scripts name numbers of shards, and another size would give each of them
another amount of memory. gpusbatch needs the size that those shards have, or it asks for too many of them.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.config.load import ANY_SLOWDOWN
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.estimators.types import RESERVE_MIB
from slurm_gpumem.site.nodes import GpuGroup, MemoryOf, NodeGroup, divided_gpus
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import HowShared
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.utilization.budget import share_for
from slurm_gpumem.utilization.interference import WAYS, load_of, usual_utilization

_DEFAULT_MIB = int(SHARING.default("shard_mib"))


class ShardSize(NamedTuple):
    """The size of a shard now and from now on."""

    now_mib: int
    wanted_mib: int
    found: bool = False
    """Whether it is what the site's own division comes to; nobody stated it."""

    @property
    def changes(self) -> bool:
        """Whether GPUs that are divided must be divided again."""
        return self.now_mib != self.wanted_mib


def shard_size(asked_mib: Optional[int], snapshot: Optional[Snapshot], memory_of: MemoryOf) -> ShardSize:
    """What was asked for, else what gpumem.toml says, else what the shards of the cluster come to."""
    stated = snapshot.policy.get("shard_mib") if snapshot else None
    sizes = _sizes(snapshot.nodes, memory_of) if snapshot else []
    now = int(stated) if stated else min(sizes, default=_DEFAULT_MIB)
    return ShardSize(now, asked_mib or now, found=not stated and now != _DEFAULT_MIB)


def shard_notes(plan: SitePlan, size: ShardSize, nodes: Sequence[Mapping[str, str]]) -> List[str]:
    """What happens to the shards that the site has: said, whether they stay or change."""
    known = {node["NodeName"]: node for node in nodes}
    notes: List[str] = []
    for group in plan.groups if plan.gres == "shard" else ():
        first = known.get(expand_names(group.nodes)[0], {})
        had = sum(count for name, _, count in parse_gres(first.get("Gres", "")) if name == "shard")
        has = sum(gpus.count * plan.shares(gpus) for gpus in group.gpus)
        if had and has != had:
            notes.append(
                f"{group.nodes}: {had} shards become {has} of {plan.shard_mib} MiB: a job that asks for "
                "--gres=shard:1 gets another amount of memory than before. Change it while no job has "
                "shards, and tell users whose scripts name a number of them"
            )
        elif had:
            notes += [note for gpus in group.gpus for note in _kept(plan, size, group, gpus)]
    return notes


def _kept(plan: SitePlan, size: ShardSize, group: NodeGroup, gpus: GpuGroup) -> List[str]:
    """What shards that stay come to."""
    shares, memory = plan.shares(gpus), gpus.memory_mib
    if plan.shard_mib * shares > memory:
        return [
            f"{group.nodes}: {shares} shards of {plan.shard_mib} MiB are more than the {memory} MiB that "
            f"{gpus.gpu_type or 'a GPU'} has in our table; if it has more, --gpu or gpumem-gpus.toml says so"
        ]
    if not size.found or not shares:
        return []
    finer = max(0, memory - plan.reserve_mib) // _DEFAULT_MIB
    return [
        f"{group.nodes}: the cluster has {shares} shards on each GPU, so a shard is "
        f"{(memory - RESERVE_MIB) // shares} MiB. They stay, because scripts may ask for numbers of them, "
        f"and count as {plan.shard_mib} MiB each, the smallest of the cluster. --shard 1G proposes {finer} "
        f"of {_DEFAULT_MIB} MiB: more jobs fit on a GPU"
    ]


def _sizes(nodes: Sequence[Mapping[str, str]], memory_of: MemoryOf) -> List[int]:
    """MiB of a shard on each kind of GPU whose memory is known; never less than the default."""
    found = []
    for node in nodes:
        for kind, _, shares in divided_gpus(node, "shard"):
            memory = memory_of(kind) if kind else None
            if memory and shares:
                found.append(max(_DEFAULT_MIB, (memory - RESERVE_MIB) // shares))
    return found


# The share of a job whose memory is given by hand, for plain sbatch: setup works it out for Lua.

NEW_SITE_ACTIVITY = 0.5
"""What setup writes for new sites: about the median of the measured jobs."""


def unknown_share(how: HowShared, active: Optional[float]) -> Optional[float]:
    """A part of a GPU, None where memory alone counts."""
    way, limit = how.mps, how.limit
    if active is None or limit is None or limit >= ANY_SLOWDOWN or way not in WAYS:
        return None
    load = load_of(usual_utilization(float(active), "assumed"))
    return round(share_for(load, float(limit), float(limit), str(way)).share, 4)
