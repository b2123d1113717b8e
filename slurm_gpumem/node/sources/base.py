"""Where measurements come from: one protocol.

A value that a source does not have is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.formats.live import GpuSample


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
