"""MIG instances: which profile a Slurm type names, and what one instance of it has (models/mig.toml).

Sites and Slurm's AutoDetect write a profile with or without its GPU: "1g.18gb", "a100_2g.10gb",
"nvidia_h100_80gb_hbm3_1g.10gb", "h100-1g.10gb". The same profile may be of several GPUs; where the GPU is
not named, what holds on all of them counts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.formats.mig_profiles import PROFILE


class Profile(NamedTuple):
    """What one instance of a profile has on one GPU."""

    name: str
    """ "1g.18gb"."""
    gpu: str
    """Its entry in the GPU table."""
    mib: int
    sms: Optional[int]
    slices: int
    most_slices: int
    """Compute slices of the whole GPU."""
    most_mib: int
    """Memory of the profile that is the whole GPU."""


def gpu_in(gpu_type: str) -> str:
    """What a type with a profile says of the GPU: "nvidia_a100" of "nvidia_a100_1g.5gb"; may be empty."""
    rest = re.sub(PROFILE, " ", gpu_type)
    return re.sub(r"(?i)(?<![a-z0-9])mig(?![a-z0-9])", " ", rest).strip(" _-.:")


def profiles(name: str, gpus: Optional[Sequence[str]] = None) -> List[Profile]:
    """This profile on each GPU that has it, of `gpus` or of all."""
    return [table[name] for gpu, table in _table().items() if name in table and (gpus is None or gpu in gpus)]


def profile_names(gpus: Optional[Sequence[str]] = None) -> Tuple[str, ...]:
    """Every profile of these GPUs, or of all."""
    found = {name for gpu, table in _table().items() if gpus is None or gpu in gpus for name in table}
    return tuple(sorted(found))


@lru_cache(maxsize=1)
def _table() -> Dict[str, Dict[str, Profile]]:
    # A submission on a site without MIG asks for names only.
    from slurm_gpumem.data import data_file
    from slurm_gpumem.toml_file import load_toml

    return {gpu: _profiles(gpu, fields) for gpu, fields in load_toml(data_file("models", "mig.toml")).items()}


def _profiles(gpu: str, fields: Dict[str, Any]) -> Dict[str, Profile]:
    rows = {name: row for name, row in fields.items() if isinstance(row, dict)}
    slices, mib = max(row["slices"] for row in rows.values()), max(row["mib"] for row in rows.values())
    return {
        name: Profile(name, gpu, row["mib"], row.get("sms"), row["slices"], slices, mib)
        for name, row in rows.items()
    }
