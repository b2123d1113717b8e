"""What is measured, and the protocol of whatever measures it. choose.py picks a node's source.

A value that a source does not have is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.formats.live import GpuSample


class Measure(NamedTuple):
    """One value of a sample: where it comes from and what is kept of it."""

    field: str
    """Of GpuSample; the live file has it under the same name."""
    mean: bool = True
    """Whether a job's record has the mean over the job's time on the GPU, as `gpu_FIELD`."""
    gpm: Optional[int] = None
    """Number of NVML's GPM metric, where that is its source: a percentage, or MiB per second."""
    dcgm: Optional[int] = None
    """Number of DCGM's field, where that is its source: a part of 1, or bytes per second."""
    rate: bool = False
    """Whether it is MiB per second, as the GPU sends (tx) or receives (rx); else a part of 1."""

    def checked(self, value: float) -> Optional[float]:
        """A counter's value, None where it makes no sense: they give NaN, and more than there can be."""
        return value if 0 <= value <= (_MOST_MIB_S if self.rate else 1.5) else None


_MOST_MIB_S = float(1 << 23)
"""Eight TiB per second: four times what NVLink carries today."""


MEASURES: Tuple[Measure, ...] = (
    Measure("memory_used_mib", mean=False),
    Measure("memory_total_mib", mean=False),
    Measure("sm_active", gpm=2, dcgm=1002),
    Measure("sm_occupancy", gpm=3, dcgm=1003),
    Measure("dram_active", gpm=10, dcgm=1005),
    Measure("utilization"),
    Measure("power_w"),
    Measure("tensor_active", gpm=5, dcgm=1004),
    Measure("pcie_tx_mib_s", gpm=20, dcgm=1009, rate=True),
    Measure("pcie_rx_mib_s", gpm=21, dcgm=1010, rate=True),
    Measure("nvlink_tx_mib_s", gpm=61, dcgm=1011, rate=True),
    Measure("nvlink_rx_mib_s", gpm=60, dcgm=1012, rate=True),
)


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    mib: Optional[float]
    mps: Optional[bool]
    """Whether it is an MPS client; None when the source cannot tell."""


class SourceError(Exception):
    """A GPU or its source does not answer now; the next reading may succeed."""


class GoneError(SourceError):
    """A MIG instance is there no more; a later one may get its UUID."""


class MetricSource(Protocol):
    """Anything that can measure GPUs."""

    name: str

    def sample(self, uuid: str) -> GpuSample: ...

    def energy_j(self, uuid: str) -> Optional[float]:
        """A counter that only grows; reading it may be expensive."""

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
