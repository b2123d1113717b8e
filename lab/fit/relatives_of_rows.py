"""What relatives teach about the rows that the correction is fitted on, never from a row's own model."""

from __future__ import annotations

from hashlib import sha1
from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from lab.fit import folds
from lab.fit.correction_rows import Row
from lab.fit.relatives_file import make, run_of, to_json
from slurm_gpumem.estimators.corrected import relatives
from slurm_gpumem.estimators.corrected.estimator import group_of
from slurm_gpumem.estimators.corrected.relatives import Near, NeighbourRuns, Relatives

LONELY_IN = 3
"""One family in three is fitted as if no other of its members had been measured: such jobs will come."""


def relatives_of(found: Sequence[Row]) -> Relatives:
    """All rows as relatives, as a file of them is read."""
    models = sorted({row.model for row in found})
    number = {name: at for at, name in enumerate(models)}

    def entry(row: Row) -> Tuple[str, FrozenSet[str], relatives.Run]:
        point = row.points[0]
        values = [sum(p.share * p.features[at] for p in row.points) for at in range(len(point.features))]
        run = run_of(number[row.model], values, row.real_mib, row.total_mib)
        return group_of(point.features), frozenset(row.classes), run

    made = make(models, (entry(row) for row in found))
    return relatives.from_json(to_json(made), "the relatives just made")


class NeighboursOfRows:
    """What the relatives say of every row's points."""

    def __init__(self, found: Sequence[Row], known: Relatives) -> None:
        self._found, self._known = found, known
        self._near: Dict[Tuple[str, Tuple[str, ...]], Near] = {}
        self._named: Dict[str, Set[int]] = {}
        self._families: Dict[str, Set[int]] = {}
        for at, model in enumerate(known.models):
            self._named.setdefault(folds.name_of(model), set()).add(at)
            self._families.setdefault(folds.group_of(model), set()).add(at)

    def without(self, fold: Optional[int], lonely: bool = False) -> List[List[NeighbourRuns]]:
        """By row and point, nothing from the fold's models, nor from a row's own.

        A row of the fold, and with `lonely` every row, hears what it will be judged with.
        """
        gone = {at for at, model in enumerate(self._known.models) if folds.fold_of_name(model) == fold}
        return [self._of(row, gone, fold, lonely) for row in self._found]

    def _of(self, row: Row, gone: Set[int], fold: Optional[int], lonely: bool) -> List[NeighbourRuns]:
        group = group_of(row.points[0].features)
        if (group, row.classes) not in self._near:
            self._near[group, row.classes] = self._known.near(group, frozenset(row.classes))
        near = self._near[group, row.classes]
        judged = folds.fold_of_name(row.model) == fold
        alone = lonely or (not judged and is_lonely(row.group))
        own = self._families[row.group] if alone else self._named[folds.name_of(row.model)]
        left_out = gone | own
        return [relatives.neighbour_runs(near, point.features, left_out) for point in row.points]


def is_lonely(family: str) -> bool:
    """Whether a family's members are taught without each other."""
    return int(sha1(f"lonely {family}".encode()).hexdigest(), 16) % LONELY_IN == 0
