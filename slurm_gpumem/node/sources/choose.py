"""The choice of the best source that this node has."""

from __future__ import annotations

import shutil
from typing import Sequence

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node.gpus import NodeGpu
from slurm_gpumem.node.sources.base import MetricSource, NoSource


def choose_source(config: NodeConfig, node: str, gpus: Sequence[NodeGpu]) -> MetricSource:
    """The configured source, or the best of DCGM, GPM and NVML that answers; NoSource when none does."""
    if config.ledger is not None or config.source == "standin":
        from slurm_gpumem.node.sources.standin import StandinSource

        return StandinSource(config.ledger, node)
    from slurm_gpumem.node.nvml import Nvml, NvmlError
    from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource

    try:
        nvml = Nvml()
        indexes = {uuid: index for index, uuid in nvml.devices()}
        base = NvmlSource(nvml, list(indexes))
    except (OSError, NvmlError):
        return NoSource()
    counters = any(nvml.gpm_supported(uuid) for uuid in indexes)
    if config.source in ("auto", "dcgm") and shutil.which("dcgmi"):
        from slurm_gpumem.node.sources.dcgm import answering_source

        dcgm = answering_source(base, indexes, config.interval_s, GpmSource(base) if counters else None)
        if dcgm is not None:
            return dcgm
    if config.source in ("auto", "gpm") and counters:
        return GpmSource(base)
    return base
