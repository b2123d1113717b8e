"""MIG profiles in names of GPUs: drivers' ("NVIDIA H200 MIG 1g.18gb") and Slurm's types ("a100_2g.10gb")."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Optional

MIG = "MIG"
# "2c.3g.20gb" is a compute instance: it shares its memory with others.
PROFILE = r"(?i)(?<![a-z0-9])(?:([1-9])c[._])?([1-9])g[._]([0-9]+)gb(?:[+._-](?:me|gfx))*"


@lru_cache(maxsize=4096)
def profile_name(name: Optional[str]) -> Optional[str]:
    """The profile that a name has, as tables of profiles spell it, "1g.18gb"; None for a whole GPU."""
    # Most names have none, and compiling the pattern takes longer than all else here.
    found = re.search(PROFILE, name) if name and "gb" in name.lower() else None
    if not found:
        return None
    compute = f"{found[1]}c." if found[1] else ""
    return f"{compute}{found[2]}g.{int(found[3])}gb"
