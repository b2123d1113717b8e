"""The memory limit that an MPS client brings in its environment, and whether it still is one.

MPS drops every limit of a client, root's default too, when its variable is invalid: not a list of GPU=SIZE,
a size of 0, a GPU that the client does not see (docs/admin/sharing-modes.md). So only the form that the task
prolog writes counts as a limit.
"""

from __future__ import annotations

import re
from typing import Mapping

LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_OURS = re.compile(r"(?:0|(?:GPU|MIG)-[0-9a-fA-F-]+)=([1-9][0-9]{0,8})M")
_SEEN = "CUDA_VISIBLE_DEVICES"


def holds_limit(environment: Mapping[str, str], most_mib: int) -> bool:
    """Whether a client with this environment is held to at most that much."""
    match = _OURS.fullmatch(environment.get(LIMIT_VARIABLE, ""))
    if match is None or int(match[1]) > most_mib:
        return False
    named = environment[LIMIT_VARIABLE].partition("=")[0]
    return named == "0" or named == environment.get(_SEEN, named)
