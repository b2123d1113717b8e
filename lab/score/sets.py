"""How good predicted speeds in a set are; every job by a fit that saw no set with its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from lab.places import INTERFERENCE_FOLDS
from lab.shared_speeds import SetJob, load_from, simple_speed
from lab.utilization_runs import SharedSet, way_of
from slurm_gpumem.utilization.interference import NAMES, SIDE, JobLoad, packaged, prepare
from slurm_gpumem.utilization.interference import speeds as set_speeds

Known = Mapping[str, float]


class SetFigures(NamedTuple):
    """Mean absolute errors of speeds (shares of the speed alone) over sets."""

    sets: int
    worst: float
    """Of the slowest job's speed in a set."""
    each: float
    """Of every single job's."""
    average: float
    """Of the set's mean."""


class JudgedSet(NamedTuple):
    """A set and the speeds that were predicted for it."""

    measured: SharedSet
    predicted: Sequence[float]


def model_of(job: str) -> str:
    """The model of a job's key: what stands before its size."""
    return job.partition("@")[0]


def load_left_out(path: Path = INTERFERENCE_FOLDS) -> Dict[str, Dict[str, Known]]:
    """By mode and model: coefficients of the fit without that model."""
    content: Any = json.loads(path.read_text())
    return {
        mode: {model: dict(zip(NAMES, values)) for model, values in by_model.items()}
        for mode, by_model in content.items()
    }


def judge_sets(
    sets: Sequence[SharedSet],
    left_out: Mapping[str, Mapping[str, Known]],
    load: Optional[Callable[[str, Mapping[str, float]], Optional[JobLoad]]] = None,
) -> List[JudgedSet]:
    """Speeds of every set, each job's by the fit without its model.

    `load` gives a job's metrics from its key and what was measured; None leaves the set out.
    """
    found = []
    for one in sets:
        loads = []
        for job, solo in zip(one.jobs, one.solo):
            known = load_from(solo) if load is None else load(job, solo)
            if known is not None:
                loads.append(known)
        if len(loads) == len(one.jobs):
            found.append(JudgedSet(one, _speeds(one, loads, left_out)))
    return found


def _speeds(
    one: SharedSet, loads: Sequence[JobLoad], left_out: Mapping[str, Mapping[str, Known]]
) -> List[float]:
    users = one.users or (0,) * len(one.jobs)
    made = []
    for place, job in enumerate(one.jobs):
        # A model that no set of a mode has was not seen by the fit of all.
        side = left_out[SIDE].get(model_of(job), packaged().modes[SIDE])
        jobs = [SetJob(str(user), prepare(load, side)) for user, load in zip(users, loads)]
        made.append(set_speeds(way_of(one), jobs)[place])
    return made


def judge_simple(sets: Sequence[SharedSet]) -> List[JudgedSet]:
    """The same by the rule min(1, 100 / sum of SM activities in percent)."""
    return [
        JudgedSet(one, [simple_speed([load_from(solo) for solo in one.solo])] * len(one.jobs)) for one in sets
    ]


def figures(items: Sequence[JudgedSet]) -> SetFigures:
    """Errors over sets; `items` must not be empty."""
    worst, each, average = [], [], []
    for item in items:
        real, got = item.measured.speeds, item.predicted
        worst.append(abs(min(got) - min(real)))
        each += [abs(a - b) for a, b in zip(got, real)]
        average.append(abs(sum(got) - sum(real)) / len(real))
    return SetFigures(len(items), _mean(worst), _mean(each), _mean(average))


def figure_lines(groups: Mapping[str, Sequence[JudgedSet]]) -> List[str]:
    """The figures of named groups as text."""
    width = max((len(name) for name in groups), default=5)
    lines = [f"{'speeds in sets':<{width}}   sets  worst job  each job  mean of set"]
    for name, items in groups.items():
        if items:
            found = figures(items)
            errors = f"{found.worst:>11.3f}{found.each:>10.3f}{found.average:>13.3f}"
            lines.append(f"{name:<{width}} {found.sets:>6}{errors}")
    return lines


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
