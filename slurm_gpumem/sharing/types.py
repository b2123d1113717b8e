"""What the site allows and what a job asks of Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class SharingPolicy:
    """The site's `[sharing]` table of gpumem.toml."""

    mode: str = "opt-in"
    """"observe", "opt-in" or "on"."""
    gres: str = "shard"
    """"shard" or "mps": one of the two per cluster."""
    shard_mib: int = 1024
    """GPU memory that one shard stands for."""


@dataclass(frozen=True)
class GpuRequest:
    """What is asked of Slurm for one job."""

    gres: str
    """The value of --gres: "shard:13", "shard:a100:13", "mps:30", "gpu:1"."""
    count: int
    """Shards (or mps units); 0 for a whole GPU."""
    per_gpu: int
    """Shards (or mps units) that one GPU of that kind has."""
    gpu_type: Optional[str]
    whole_gpu: bool
    reason: str
    """Why it is what it is, for the human line."""
