"""What the site allows and what a job asks of Slurm."""

from __future__ import annotations

from typing import NamedTuple, Optional

from slurm_gpumem.config.load import SharingPolicy

__all__ = ["GpuKind", "GpuRequest", "HostShare", "SharingPolicy"]


class GpuKind(NamedTuple):
    """One kind of GPU that a job may land on, and what of its node belongs to one such GPU."""

    gpu_type: Optional[str]
    """Slurm's type; None where the site gave none."""
    units: int
    """Shards (or mps units) that one GPU is divided into; 0 when it is not shared."""
    memory_mib: Optional[int]
    """Its memory as far as jobs may have it; None when nobody knows."""
    gpus: int
    """How many of them are in reach."""
    cpus_per_gpu: float
    threads_per_core: int
    host_mib_per_gpu: int

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.gpu_type or "GPU"


class GpuRequest(NamedTuple):
    """What is asked of Slurm for one job."""

    gres: str
    """The value of --gres: "shard:13", "shard:a100:13", "mps:30", "gpu:1"; "" to leave the job's own."""
    units: int
    """Shards (or mps units); 0 for a whole GPU."""
    per_gpu: int
    """Shards (or mps units) that one GPU of that kind has."""
    gpu_type: Optional[str]
    whole_gpu: bool
    reason: str
    """Why it is what it is, for the human line."""
    memory_units: int = 0
    """What memory alone would ask for; 0 where nothing was worked out."""
    activity_units: int = 0
    """What the job's activity alone would ask for; 0 where it does not count."""

    @property
    def decided_by(self) -> str:
        """ "activity" where that made the share larger than memory would, else "memory"."""
        return "activity" if self.activity_units > self.memory_units else "memory"


class HostShare(NamedTuple):
    """CPUs and host memory that go with a part of a GPU; 0 for what is not asked."""

    cpus: int
    memory_mib: int
