"""MIG: layouts that the hardware allows. A site chooses them; no job changes them.

An A100, H100 or H200 has 8 slices of memory and 7 of multiprocessors. Instances of 1 and 2 slices of memory
(1g, 2g) may begin at each of the slices 0 to 6 and at 0, 2, 4, those of 4 slices (3g) at 0 and 4 (`nvidia-smi
mig -lgipp`). So each half of a GPU is split by itself, and the eighth slice is of use to a 3g only.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Dict, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import profile_names
from slurm_gpumem.simulation.types import Fleet

Layout = Tuple[int, ...]
"""Slices of memory of each instance of a GPU."""
_NAMES = {4: "3g", 2: "2g", 1: "1g"}
_HALVES = (((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)), ((4,), (2, 1), (1, 1, 1)))
LAYOUTS: Dict[str, Layout] = {
    "+".join(_NAMES[size] for size in layout): layout
    for layout in (tuple(sorted(first + second, reverse=True)) for first, second in product(*_HALVES))
}
"""By name: "3g+2g+1g"."""


def split_gpus(text: str, fleet: Fleet) -> Tuple[Layout, ...]:
    """Layouts of the GPUs that "2x3g+2g+1g" splits, the first ones of the fleet; the others stay whole."""
    if not any(name.startswith("7g.") for name in profile_names([fleet.name])):
        raise UsageError(f"--mig: {fleet.name} has no MIG instances")
    match = re.fullmatch(r"([0-9]{1,6})x(.+)", text.strip())
    if match is None or match[2] not in LAYOUTS or not 0 < int(match[1]) <= fleet.gpus:
        raise UsageError(
            f"--mig {text!r}: write the number of GPUs that are split and how, like 2x3g+2g+1g; "
            f"layouts of the hardware: {', '.join(LAYOUTS)}"
        )
    return (LAYOUTS[match[2]],) * int(match[1])
