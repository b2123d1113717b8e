"""The table of GPU types, models/gpus.toml."""

from __future__ import annotations

from typing import Dict, Optional

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.memory.types import Gpu
from slurm_gpumem.toml_file import load_toml


def gpu_table() -> Dict[str, Gpu]:
    """All known GPU types by name."""
    table = load_toml(data_path("models", "gpus.toml"))
    return {
        name: Gpu(name=name, memory_mib=entry["memory_mib"], context_mib=entry["context_mib"])
        for name, entry in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """The entry of one GPU type."""
    table = gpu_table()
    gpu = table.get(name.lower())
    if gpu is None:
        raise UnknownNameError("GPU", name, sorted(table))
    return gpu


def closest_gpu(type_name: Optional[str], memory_mib: Optional[int]) -> Gpu:
    """The entry that best matches a Slurm GPU type and its memory; never fails.

    Slurm types are free text ("a100", "nvidia_a100-sxm4-40gb"); an unknown one gets
    the context of the nearest memory size and keeps its own name.
    """
    table = gpu_table()
    gpu = table.get((type_name or "").lower()) or next(iter(table.values()))
    return Gpu(type_name or gpu.name, memory_mib or gpu.memory_mib, gpu.context_mib)
