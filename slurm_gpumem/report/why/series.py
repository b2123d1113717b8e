"""What the pictures of `gpumem why` have in common: colours and sampled points."""

from __future__ import annotations

from typing import Dict, List, Tuple

from slurm_gpumem.estimators.explain.timeline import Timeline

Colour = Tuple[int, int, int]
# Colours that stay apart for most colour-blind eyes.
COLOURS: Dict[str, Colour] = {
    "weights": (0, 114, 178),
    "buffers": (86, 180, 233),
    "optimizer": (230, 159, 0),
    "gradients": (213, 94, 0),
    "inputs": (150, 150, 150),
    "activations": (0, 158, 115),
    "workspace": (204, 121, 167),
}
"""By category, in the order in which they are stacked: what stays below, what comes and goes above."""
MIB = 1 << 20


def sampled(line: Timeline, columns: int) -> List[Tuple[int, Tuple[int, ...]]]:
    """(point, bytes by category in the order of COLOURS), the highest of each column's points."""
    order = [line.categories.index(name) for name in COLOURS]
    count = len(line.points)
    found = []
    for column in range(min(columns, count)):
        first = column * count // min(columns, count)
        last = max(first + 1, (column + 1) * count // min(columns, count))
        best = max(range(first, last), key=lambda at: sum(line.points[at]))
        found.append((best, tuple(line.points[best][at] for at in order)))
    return found


def present(line: Timeline) -> List[str]:
    """The categories that have anything to show, in the order of COLOURS."""
    most = {name: max((p[line.categories.index(name)] for p in line.points), default=0) for name in COLOURS}
    return [name for name, size in most.items() if size * 500 >= line.peak_bytes]
