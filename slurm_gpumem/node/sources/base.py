"""Where measurements come from: one protocol, and the choice of the best source this node has.

A value that a source does not have is None, never 0.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Dict, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node.gpus import Gpu


@dataclass(frozen=True)
class GpuSample:
    """One look at one GPU. Activities are parts of 1 since the look before."""

    memory_used_mib: Optional[float] = None
    memory_total_mib: Optional[float] = None
    sm_active: Optional[float] = None
    sm_occupancy: Optional[float] = None
    dram_active: Optional[float] = None
    utilization: Optional[float] = None
    """Part of the time in which any kernel ran at all."""
    power_w: Optional[float] = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    mib: Optional[float]
    mps: Optional[bool]
    """Whether it is an MPS client; None when the source cannot tell."""


class SourceError(Exception):
    """A GPU or its source does not answer now; the next look may succeed."""


class MetricSource(Protocol):
    """Anything that can look at GPUs."""

    name: str

    def sample(self, uuid: str) -> GpuSample: ...

    def energy_j(self, uuid: str) -> Optional[float]:
        """A counter that only grows; asking for it may be dear."""

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]: ...

    def xids(self) -> Sequence[Tuple[Optional[str], int]]:
        """(UUID, Xid) of driver errors since the last call."""

    def finished(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        """pid → (peak MiB, start, seconds) from the driver's own accounting, where enabled."""

    def close(self) -> None: ...


class NoSource:
    """For a node without NVML: nothing is known, and nothing fails."""

    name = "none"

    def sample(self, uuid: str) -> GpuSample:
        return GpuSample()

    def energy_j(self, uuid: str) -> Optional[float]:
        return None

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]:
        return ()

    def xids(self) -> Sequence[Tuple[Optional[str], int]]:
        return ()

    def finished(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        return {}

    def close(self) -> None:
        return None


def choose_source(config: NodeConfig, node: str, gpus: Sequence[Gpu]) -> MetricSource:
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
    if config.source in ("auto", "dcgm") and shutil.which("dcgmi"):
        from slurm_gpumem.node.sources.dcgm import DcgmSource

        dcgm = DcgmSource(base, indexes, config.interval_s)
        if dcgm.answers():
            return dcgm
        dcgm.stop()
    if config.source in ("auto", "gpm") and any(nvml.gpm_supported(uuid) for uuid in indexes):
        return GpmSource(base)
    return base
