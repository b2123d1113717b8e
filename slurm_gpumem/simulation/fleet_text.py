"""GPUs as a command line names them: "4xa100-40gb" is one node, "16x8xh100" sixteen nodes of eight."""

from __future__ import annotations

import re

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.simulation.power import max_watts
from slurm_gpumem.simulation.types import Fleet

_TEXT = re.compile(r"(?:([0-9]{1,6})x)?([0-9]{1,6})x(.+)")


def parse_fleet(text: str, *, cores_per_node: int = 0, shard_mib: int = 1024) -> Fleet:
    """The GPUs that a text names; their memory in whole shards."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or not int(match[2]) or (match[1] is not None and not int(match[1])):
        raise UsageError(f"{text!r} names no GPUs; write 4xa100-40gb, or 16x8xh100 for 16 nodes of 8")
    gpu = find_gpu(match[3])
    return Fleet(
        nodes=int(match[1] or 1),
        gpus_per_node=int(match[2]),
        memory_mib=gpu.memory_mib // shard_mib * shard_mib,
        cores_per_node=cores_per_node,
        name=gpu.name,
        max_watts=max_watts(gpu.name),
    )
