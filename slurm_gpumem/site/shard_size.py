"""How much GPU memory a shard stands for, on a site that may have shards already.

What a site has stays: its users' scripts name numbers of shards, and another size would give each of them
another amount of memory. gpusbatch needs the size that those shards have, or it asks for too many of them.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.estimators.types import RESERVE_MIB
from slurm_gpumem.site.nodes import MemoryOf, NodeGroup, divided_gpus
from slurm_gpumem.site.plan import SitePlan
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.node_names import expand_names

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


def shard_notes(
    plan: SitePlan, groups: Sequence[NodeGroup], size: ShardSize, nodes: Sequence[Mapping[str, str]]
) -> List[str]:
    """What happens to the shards that the site has: said, whether they stay or change."""
    if plan.gres != "shard":
        return []
    notes: List[str] = []
    before = {
        (node["NodeName"], kind): shares for node in nodes for kind, _, shares in divided_gpus(node, "shard")
    }
    for group in groups:
        for gpus in group.gpus:
            had = before.get((expand_names(group.nodes)[0], gpus.gpu_type), 0)
            has = plan.shares(gpus)
            whole = gpus.memory_mib
            if not had or gpus.instance:
                continue
            if has != had:
                notes.append(
                    f"{group.nodes}: {had} shards of each GPU become {has}: a job that asks for "
                    f"--gres=shard:1 gets {plan.shard_mib} MiB, before it was 1/{had} of {whole}. Change it "
                    "while no job has shards, and tell users whose scripts name a number of them"
                )
            elif plan.shard_mib * has > whole:
                notes.append(
                    f"{group.nodes}: {has} shards of {plan.shard_mib} MiB are more than the {whole} MiB that "
                    f"{gpus.gpu_type or 'a GPU'} has in our table; if it has more, --gpu or gpumem-gpus.toml "
                    "says so"
                )
            elif size.found:
                finer = max(0, whole - plan.reserve_mib) // _DEFAULT_MIB
                notes.append(
                    f"{group.nodes}: the cluster has {has} shards on each GPU, so a shard is "
                    f"{(whole - RESERVE_MIB) // has} MiB. They stay, because scripts may ask for numbers of "
                    f"them, and count as {plan.shard_mib} MiB each, the smallest of the cluster. "
                    f"--shard 1G proposes {finer} of {_DEFAULT_MIB} MiB: more jobs fit on a GPU"
                )
    return notes


def _sizes(nodes: Sequence[Mapping[str, str]], memory_of: MemoryOf) -> List[int]:
    """MiB of a shard on each kind of GPU whose memory is known; never less than the default."""
    found = []
    for node in nodes:
        for kind, _, shares in divided_gpus(node, "shard"):
            memory = memory_of(kind) if kind else None
            if memory and shares:
                found.append(max(_DEFAULT_MIB, (memory - RESERVE_MIB) // shares))
    return found
