"""Kinds of GPU for tests of requests."""

from __future__ import annotations

from typing import List, Optional

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.submission.share.request import GpuKind, Need

SHARDS = SharingPolicy()


def kind(
    gpu_type: Optional[str] = "a100",
    gib: Optional[int] = 40,
    units: Optional[int] = None,
    gpus: int = 8,
    cpus: float = 16.0,
    threads: int = 1,
    host_mib: int = 64_000,
) -> GpuKind:
    return GpuKind(
        gpu_type, gib or 0 if units is None else units, gib and gib * 1024, gpus, cpus, threads, host_mib
    )


A100, H200 = kind(), kind("h200", 140, gpus=4)


def same(mib: int, kinds: List[GpuKind]) -> List[Need]:
    return [Need(mib, mib) for _ in kinds]
