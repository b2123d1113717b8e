"""GPU names as drivers write them: "NVIDIA H200", and "NVIDIA H200 MIG 1g.18gb" for a MIG instance of one."""

from __future__ import annotations

import re
from functools import lru_cache

MIG = "MIG"
_PROFILE = re.compile(rf"(?:^|\s){MIG}\s+([1-9][0-9a-z.+_-]{{0,23}})$", re.IGNORECASE)


@lru_cache(maxsize=1024)
def profile_of(name: str) -> str:
    """The MIG profile that a GPU's name ends with, "1g.18gb"; "" of a whole GPU."""
    found = _PROFILE.search(name)
    return found[1].lower() if found else ""
