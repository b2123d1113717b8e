"""Speeds of two users' jobs that no fit has seen, by coefficients of before: `python -m lab.score.pairs`.

The sets are those of plans/sets_pairs.toml (lab/data/utilization/check-pairs.jsonl.gz; its name keeps them
out of the fit). frozen-pairs.json beside them was committed before they were seen: it has the hash of the
coefficients that the package predicted with then (frozen-interference.json).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Dict, List, Sequence

from lab.command import print_lines
from lab.places import FITTED, SETS
from lab.score.sets import JudgedSet, figure_lines
from lab.shared_speeds import SetJob, load_from
from lab.utilization_runs import SharedSet, load_sets, way_of
from slurm_gpumem.errors import UsageError
from slurm_gpumem.utilization.interference import FILE, FORMAT, SIDE, Interference, from_json, prepare, speeds

PREFIX = "check-pairs"
FROZEN = SETS / "frozen-pairs.json"
COEFFICIENTS = SETS / "frozen-interference.json"


def judged(sets: Sequence[SharedSet], model: Interference) -> Dict[str, List[JudgedSet]]:
    """By title: every set with what was predicted for it."""
    found: Dict[str, List[JudgedSet]] = {}
    for one in sets:
        users = [str(user) for user in one.users] or ["0"] * len(one.jobs)
        several = "two users" if len(set(users)) > 1 else "one user"
        jobs = [
            SetJob(user, prepare(load_from(solo), model.modes[SIDE])) for user, solo in zip(users, one.solo)
        ]
        said = speeds(way_of(one), jobs, model.turns)
        found.setdefault(f"{one.mode}, {several}", []).append(JudgedSet(one, said))
    return found


def load_frozen(path: Path = FROZEN, coefficients: Path = COEFFICIENTS) -> Interference:
    """What was written down before; UsageError where the coefficients are not those."""
    frozen = json.loads(path.read_text())["interference"]
    if hashlib.sha256(coefficients.read_bytes()).hexdigest() != frozen:
        raise UsageError(f"{coefficients.name} has other coefficients than {path.name} was written for")
    # Priorities came later, and no pair had them; so did what belongs to shares only.
    content = {**json.loads(coefficients.read_text()), "format": FORMAT}
    later = json.loads((FITTED / FILE).read_text())
    turns = {**later["turns"], **content["turns"]}
    return from_json({**content, "priority": later["priority"], "turns": turns})


def lines() -> List[str]:
    """The figures."""
    sets = load_sets(prefix=PREFIX)
    if not sets:
        raise UsageError(f"no measured sets: {SETS.name}/{PREFIX}.jsonl.gz")
    return figure_lines(judged(sets, load_frozen()))


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: lines()))
