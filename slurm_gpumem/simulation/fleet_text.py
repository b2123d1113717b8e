"""GPUs as a command line names them: "4xa100-40gb" is one node, "16x8xh100" sixteen nodes of eight."""

from __future__ import annotations

import re

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpu_types.gpus import find_gpu
from slurm_gpumem.simulation.power import max_watts
from slurm_gpumem.simulation.types import Fleet

_TEXT = re.compile(r"(?:([0-9]{1,6})x)?([0-9]{1,6})x(.+)")

MOST_GPUS = 1_000_000


def parse_fleet(text: str, *, shard_mib: int = 1024) -> Fleet:
    """The GPUs that a text names; their memory in whole shards."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or not int(match[2]) or (match[1] is not None and not int(match[1])):
        raise UsageError(f"{text!r} names no GPUs; write 4xa100-40gb, or 16x8xh100 for 16 nodes of 8")
    gpu = find_gpu(match[3])
    nodes, per_node = int(match[1] or 1), int(match[2])
    if nodes * per_node > MOST_GPUS:
        raise UsageError(f"{text!r} names {nodes * per_node:,} GPUs; up to {MOST_GPUS:,} can be simulated")
    return Fleet(
        nodes=nodes,
        gpus_per_node=per_node,
        memory_mib=gpu.memory_mib // shard_mib * shard_mib,
        name=gpu.name,
        max_watts=max_watts(gpu.name),
    )
