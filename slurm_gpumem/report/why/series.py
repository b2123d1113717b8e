"""What the pictures of `gpumem why` have in common: colours and sampled points."""

from __future__ import annotations

from typing import Dict, List, Tuple

from slurm_gpumem.estimators.explain.timeline import Timeline

# Colours that stay apart for most colour-blind eyes.
COLOURS: Dict[str, str] = {
    "weights": "#0072b2",
    "buffers": "#56b4e9",
    "optimizer": "#e69f00",
    "gradients": "#d55e00",
    "inputs": "#969696",
    "activations": "#009e73",
    "workspace": "#cc79a7",
}
"""By category, in the order in which they are stacked: what stays below, what comes and goes above."""


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
