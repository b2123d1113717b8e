"""Where Slurm put a job: which GPUs of which node, and how much of each."""

from __future__ import annotations

import re
from typing import List, NamedTuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.gres import GPU_GRES, parse_gres
from slurm_gpumem.slurm.node_names import expand_names

# [0-9], not \d: numbers of Slurm are ASCII.
_PER_NODE = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_PLACED = re.compile(r"([^,()]+)\(([^)]*)\)")
_USED = re.compile(r"([0-9]+)/([0-9]+)")


class Placement(NamedTuple):
    """A job's part of one GPU."""

    node: str
    gpu: int
    gres: str
    """"gpu", "shard" or "mps"."""
    units: int
    """Shards or mps units on this GPU; 1 for a whole one."""


def placements(job_text: str) -> List[Placement]:
    """The GPUs in the text of `scontrol show job -d`; none while the job waits."""
    found: List[Placement] = []
    for nodes, gres in _PER_NODE.findall(job_text):
        for item, where in _PLACED.findall(gres):
            for name, _, count in parse_gres(item):
                on_each = _on_gpus(where, count) if name in GPU_GRES else []
                found += [
                    Placement(node, gpu, name, units) for node in _names(nodes) for gpu, units in on_each
                ]
    return found


def _names(nodes: str) -> List[str]:
    """Nodes on which a job has the same are written as one: "n[1-2]"."""
    try:
        return expand_names(nodes)
    except UsageError:
        return [nodes]


def _on_gpus(where: str, count: int) -> List[tuple[int, int]]:
    if where.startswith("IDX:"):
        # 22.05 tells the GPUs, not how much of each; a shared job is on one of them only.
        gpus = _indices(where[len("IDX:") :])
        return [(gpu, count // len(gpus)) for gpu in gpus]
    # From 24.11 on: what is used of each GPU, in order.
    used = [int(units) for units, _ in _USED.findall(where)]
    return [(gpu, units) for gpu, units in enumerate(used) if units]


def _indices(text: str) -> List[int]:
    """The numbers of "0,2-3"; none of "N/A"."""
    numbers: List[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers += range(int(first), int(last or first) + 1)
    return numbers
