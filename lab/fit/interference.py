"""Fit how jobs slow each other down on the measured sets, and judge it on jobs that were left out.

    python -m lab.fit.interference

Writes models/fitted/interference.json, and lab/data/folds/interference.json: one fit a model, without any set
with a job of that model, to judge it by.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import least_squares

from lab.fit.utilization import data_sha256
from lab.places import FITTED, INTERFERENCE_FOLDS, SETS
from lab.score.sets import model_of
from lab.shared_speeds import SetJob, load_from, speeds
from lab.utilization_runs import SharedSet, load_sets, mode_of
from slurm_gpumem.utilization.budget import budget
from slurm_gpumem.utilization.interference import (
    FILE,
    FORMAT,
    MODES,
    NAMES,
    PER_USER,
    POSITIVE,
    SIDE,
    START,
    JobLoad,
    Turns,
    packaged,
    prepare,
)
from slurm_gpumem.utilization.interference import speeds as set_speeds

Known = Dict[str, float]
Array = Any
SLOWDOWNS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0)
_ERROR = 0.05
"""A speed this far off weighs as much as a coefficient one `_HELD` from its start."""
_HELD = {"roundness": 0.7, "own": 0.15, "sensitivity": 1.0, "pressure": 0.3}
_HELD_TRAIT = 0.6
_WORST = 2.0
"""The slowest job of a set counts as much as this number of others: it is the one that the bound is about."""


def fit_mode(sets: Sequence[SharedSet], start: Mapping[str, float] = START) -> Known:
    """The coefficients that explain these sets best, held near `start`."""
    loads = [[load_from(solo) for solo in one.solo] for one in sets]
    real = [np.array(one.speeds) for one in sets]
    weights = [np.where(speed == speed.min(), _WORST, 1.0) ** 0.5 for speed in real]
    begin = _packed(start)
    held = np.array([_HELD.get(name, _HELD_TRAIT) for name in NAMES])

    def residuals(values: Array) -> Array:
        known = _unpacked(values)
        parts = [
            weight * (np.array(speeds(jobs, known)) - true) / _ERROR
            for jobs, true, weight in zip(loads, real, weights)
        ]
        return np.concatenate([*parts, (values - begin) / held])

    return _unpacked(least_squares(residuals, begin, loss="soft_l1", max_nfev=40).x)


def _packed(known: Mapping[str, float]) -> Array:
    return np.array([np.log(known[name]) if name in POSITIVE else known[name] for name in NAMES])


def _unpacked(values: Array) -> Known:
    return {
        name: float(np.exp(value)) if name in POSITIVE else float(value) for name, value in zip(NAMES, values)
    }


def without_each(sets: Sequence[SharedSet]) -> Dict[str, List[float]]:
    """By model: the coefficients of a fit without any set in which it takes part, in the order of NAMES."""
    models = sorted({model_of(job) for one in sets for job in one.jobs})
    others = ([one for one in sets if model not in map(model_of, one.jobs)] for model in models)
    fitted = Parallel(n_jobs=-1)(delayed(fit_mode)(some) for some in others)
    return {model: [float(f"{known[name]:.4g}") for name in NAMES] for model, known in zip(models, fitted)}


def fit_turns(sets: Sequence[SharedSet], modes: Mapping[str, Mapping[str, float]]) -> Turns:
    """How servers take turns, from sets of several users: the grid's best, the slowest jobs counting most."""
    known = packaged().turns  # what belongs to shares: lab.fit.turns follows
    chosen = [
        (one, [SetJob(str(user), prepare(load_from(solo), modes[SIDE]))
               for user, solo in zip(one.users, one.solo)])
        for one in sets
        if one.mode == PER_USER and len(set(one.users)) > 1
    ]  # fmt: skip
    if not chosen:
        return known._replace(need=2.0, capacity=0.95)

    def error(turns: Turns) -> float:
        total = 0.0
        for one, jobs in chosen:
            got = set_speeds(PER_USER, jobs, turns)
            off = [abs(said - real) for said, real in zip(got, one.speeds)]
            total += sum(off) / len(off) + _WORST * abs(min(got) - min(one.speeds))
        return total

    needs, capacities = np.arange(1.0, 4.01, 0.1), np.arange(0.8, 1.001, 0.01)
    grid = [
        known._replace(need=round(float(a), 2), capacity=round(float(b), 2))
        for a in needs
        for b in capacities
    ]
    return min(grid, key=error)


def scale_points(jobs: Sequence[JobLoad], known: Mapping[str, float]) -> List[List[float]]:
    """For some slowdowns the sum of pressures S at which these jobs' shares are smallest on average."""
    points = []
    grid = np.geomspace(0.05, 6.0, 97)
    for slowdown in SLOWDOWNS:
        means = [np.mean([budget(job, slowdown, total, known).share for job in jobs]) for total in grid]
        points.append([slowdown, round(float(grid[int(np.argmin(means))]), 4)])
    return points


def fit_all(sets: Sequence[SharedSet]) -> Dict[str, Any]:
    """Coefficients and scales of both modes; time slices start from what MPS taught."""
    loads = list({job: load_from(solo) for one in sets for job, solo in zip(one.jobs, one.solo)}.values())
    modes: Dict[str, Any] = {}
    start: Mapping[str, float] = START
    for mode in MODES:
        chosen = [one for one in sets if mode_of(one) == mode]
        known = fit_mode(chosen, start) if chosen else dict(start)
        start = known
        rounded = {name: float(f"{value:.5g}") for name, value in known.items()}
        modes[mode] = {"coefficients": rounded, "scale": scale_points(loads, rounded), "sets": len(chosen)}
    return modes


def main() -> int:
    """Fit all, then without each model in turn; write both."""
    path = FITTED / FILE
    sets = load_sets()
    modes = fit_all(sets)
    several = sum(one.mode == PER_USER and len(set(one.users)) > 1 for one in sets)
    turns = fit_turns(sets, {mode: part["coefficients"] for mode, part in modes.items()})
    content = {
        "format": FORMAT,
        "modes": modes,
        "turns": turns._asdict(),
        "priority": json.loads(path.read_text())["priority"],  # lab.fit.priority follows
        "card": {
            "data": f"{len(sets)} sets of {len({job for one in sets for job in one.jobs})} jobs on an H200",
            "data_sha256": data_sha256([SETS], ("sets",)),
            "command": "python -m lab.fit.interference",
            "turns": f"{several} sets of several users",
        },
    }
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    left_out = {mode: without_each([one for one in sets if mode_of(one) == mode]) for mode in MODES}
    INTERFERENCE_FOLDS.write_text(json.dumps(left_out, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
