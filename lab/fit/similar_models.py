"""Write the list of similar models that estimates read: `python -m lab.fit.similar_models [--rows DIR]`.

Every measured run of lab/data/ground-truth as seen through each text of its model with shapes; the format is
in `estimators.corrected.similar`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import AbstractSet, Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from lab.fit.text_rows import Row, rows
from lab.ground_truth import load_ground_truth
from lab.places import FITTED, GROUND_TRUTH, shown
from slurm_gpumem.estimators.corrected.estimator import SHAPELESS
from slurm_gpumem.estimators.corrected.similar import (
    FILE,
    FORMAT,
    LEAST_ACTIVATIONS,
    Conditions,
    Profile,
    Run,
    SimilarModels,
)

LEAST_BEYOND, MOST_BEYOND = -0.5, 2.0


def of_rows(found: Sequence[Row]) -> SimilarModels:
    """All rows with shapes as similar models of later jobs."""
    models = sorted({row.model for row in found})
    number = {name: at for at, name in enumerate(models)}
    shaped = (row for row in found if row.shown != SHAPELESS)
    return make(models, ((row.shown, frozenset(row.classes), _run(number[row.model], row)) for row in shaped))


def _run(model: int, row: Row) -> Run:
    mixed = zip(*(tuple(point.share * value for value in point.conditions) for point in row.points))
    job = Conditions(*map(sum, mixed))
    beyond = (row.real_mib / row.total_mib - 1) / max(job.activations, LEAST_ACTIVATIONS)
    return Run(model, max(LEAST_BEYOND, min(MOST_BEYOND, beyond)), *job)


def make(models: Sequence[str], runs: Iterable[Tuple[str, FrozenSet[str], Run]]) -> SimilarModels:
    """From runs with their group and classes; a class is as rare as the models that name it are few."""
    named: Dict[str, Set[int]] = {}
    profiles: Dict[str, Dict[FrozenSet[str], List[Run]]] = {}
    for group, classes, run in runs:
        profiles.setdefault(group, {}).setdefault(classes, []).append(run)
        for name in classes:
            named.setdefault(name, set()).add(run.model)
    weights = {name: round(log((1 + len(models)) / len(by)), 4) for name, by in sorted(named.items())}
    return SimilarModels(
        tuple(models),
        weights,
        {
            group: tuple(_profile(classes, found[classes]) for classes in sorted(found, key=sorted))
            for group, found in sorted(profiles.items())
        },
    )


def only(known: SimilarModels, wanted: Callable[[str], bool]) -> SimilarModels:
    """Those of some models: what is left to teach about one whose own runs must not."""
    kept = {number for number, name in enumerate(known.models) if wanted(name)}
    groups = {
        group: tuple(
            _profile(set(profile.classes), [run for run in profile.runs if run.model in kept])
            for profile in profiles
        )
        for group, profiles in known.groups.items()
    }
    return replace(known, groups=groups)


def _profile(classes: AbstractSet[str], runs: Iterable[Sequence[float]]) -> Profile:
    return Profile(tuple(sorted(classes)), json.dumps(list(runs), separators=(",", ":")))


def to_json(known: SimilarModels) -> Dict[str, Any]:
    """As the file has it."""
    classes = list(known.weights)
    number = {name: at for at, name in enumerate(classes)}

    def text(profiles: Sequence[Profile]) -> str:
        named = [[number[name] for name in profile.classes] for profile in profiles]
        rounded = [_profile(set(profile.classes), map(_rounded, profile.runs)) for profile in profiles]
        return "\n".join([json.dumps(named, separators=(",", ":")), *(profile.text for profile in rounded)])

    return {
        "format": FORMAT,
        "models": list(known.models),
        "classes": classes,
        "weights": list(known.weights.values()),
        "groups": {group: text(profiles) for group, profiles in known.groups.items()},
    }


def _rounded(run: Run) -> List[float]:
    return [run.model, round(run.beyond, 4), round(run.activations, 3), run.amp, round(run.log_total, 2)]


def main(argv: Optional[List[str]] = None) -> int:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="folder that keeps the simulated rows, or has them")
    args = parser.parse_args(argv)
    kept = args.rows / f"{GROUND_TRUTH.name}.jsonl.gz" if args.rows else None
    found = rows(load_ground_truth(GROUND_TRUTH), kept)
    # Not packed: every estimate reads it.
    path = FITTED / FILE
    path.write_text(json.dumps(to_json(of_rows(found)), separators=(",", ":")) + "\n")
    print(f"{len(found):,} rows of {len({row.model for row in found}):,} models: {shown(path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
