"""Estimates in the form of the published classifiers: how often is the peak in the right class of size?"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from lab.score.accuracy import Score

CLASSES: Tuple[Tuple[str, int], ...] = (
    ("synthetic-mlp", 1),
    ("synthetic-mlp", 2),
    ("synthetic-cnn", 8),
    ("synthetic-transformer", 8),
)
"""Families of generated networks and the GiB of one class, as GPUMemNet has them."""
_MIB_PER_GIB = 1024


def class_accuracy(scores: Sequence[Score], gib: int) -> float:
    """Share of runs whose estimated peak lies in the class of the measured one."""
    size = gib * _MIB_PER_GIB
    return sum(s.peak_mib // size == s.real_mib // size for s in scores) / len(scores)


def class_lines(scores: Sequence[Score], names: Sequence[str]) -> List[str]:
    """A table of all estimators; empty where no run is of these families."""
    cells: Dict[Tuple[str, Tuple[str, int]], str] = {}
    for name in names:
        for family, gib in CLASSES:
            own = [s for s in scores if s.estimator == name and s.run.row.get("family") == family]
            if own:
                cells[name, (family, gib)] = f"{class_accuracy(own, gib):.3f}"
    shown = [name for name in names if any(key[0] == name for key in cells)]
    columns = [column for column in CLASSES if any(key[1] == column for key in cells)]
    if not shown:
        return []
    heads = [f"{family[len('synthetic-') :]}, {gib} GiB" for family, gib in columns]
    width = max(len("estimator"), *map(len, shown))
    lines = ["generated networks: share of peaks in the right class of size", ""]
    lines[1] = f"{'estimator':<{width}}" + "".join(f"{head:>20}" for head in heads)
    for name in shown:
        lines.append(
            f"{name:<{width}}" + "".join(f"{cells.get((name, column), '-'):>20}" for column in columns)
        )
    return lines
