"""How fast each job of a set runs beside the others, as a share of its speed alone.

A job presses on its neighbours as hard as it drives the multiprocessors (a little more or less by how it does
that), pressures add up, and what they do to a job depends on the job:

    step while sharing / step alone = max(1, own activity + pressure) + pressure · sensitivity

the maximum rounded off. The first term is the GPU's time shared out; the second the waiting of small kernels
behind large ones, which hits jobs of many short kernels hardest. Because pressures add up and more of them is
never better, a bound on their sum is a bound on every job's slowdown: `budget` stands on that.

At one server for all users busy jobs run with a lower priority, so that a light job's kernels do not wait
behind theirs: busy jobs press less on light ones, and light ones harder on busy ones (`Priority`).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, log
from typing import Any, Dict, Hashable, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.data import data_file, fitted
from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.formats.comment import is_busy

FORMAT = "gpumem-interference/4"
FILE = "interference.json"
MODES = ("mps", "timeslice")
TRAITS = ("occupancy", "dram", "log_step")
"""What besides activity makes a job press harder or suffer more; each about 0 for a usual job."""
START: Mapping[str, float] = {
    "roundness": 4.0,
    "own": 1.0,
    "sensitivity": 0.15,
    "pressure": 1.0,
    **{f"press_{trait}": 0.0 for trait in TRAITS},
    **{f"suffer_{trait}": 0.0 for trait in TRAITS},
    "suffer_idle": 0.0,
}
NAMES = tuple(START)
POSITIVE = ("roundness", "own", "sensitivity", "pressure")
_USUAL_STEP, _USUAL_OCCUPANCY, _USUAL_DRAM = 0.03, 0.3, 0.4
"""Of a usual job: seconds of a step, and occupancy and memory traffic for each active multiprocessor."""
_STEPS = (0.002, 0.061)
"""Seconds of the shortest and the longest step in the measured sets; beyond them a step counts as these.
With the trend carried on, two jobs with steps of 170 ms would do less under MPS than one alone. They do 1.2
times its work, and 0.9 in turns (measured on an H200: lab/data/utilization/heavy-pairs.jsonl)."""
_STEEPEST = 3.0


class JobLoad(NamedTuple):
    """A job alone: shares of 0 to 1, and seconds."""

    active: float
    occupancy: float
    dram: float
    step: float

    @property
    def busy(self) -> bool:
        """Whether it runs with the lower priority at one server for all users."""
        return is_busy(100 * self.active)


class Turns(NamedTuple):
    """How the MPS servers of several users take turns."""

    need: float
    """A server whose jobs keep the share a of the multiprocessors active wants 1 - (1 - a) ** need of the
    time: it has a turn while any kernel runs, however few multiprocessors that keeps busy."""
    capacity: float
    """What is left of the time after changing from one to the other."""
    least: float
    """What a job in turns weighs at least, as pressure."""
    scale: Tuple[Tuple[float, float], ...]
    """In the place of `Interference.scales`."""

    def need_of(self, active: float) -> float:
        """The share of the time that a server wants whose jobs keep the GPU that active."""
        return 1 - float((1 - min(active, 1.0)) ** self.need)

    def active_at(self, busy: float) -> float:
        """The SM activity of a job that has any kernel on the GPU for that share of the time."""
        return 1 - float((1 - busy) ** (1 / self.need))


class Priority(NamedTuple):
    """What the priorities of jobs at one server do."""

    eased: float
    """A busy job's pressure on light ones, as a part of what it is among equals."""
    raised: float
    """A light job's pressure on busy ones, the same."""
    scale: Tuple[Tuple[float, float], ...]
    """In the place of `Interference.scales`."""


class Interference(NamedTuple):
    """A checked file: coefficients and the scale of budgets, by mode of sharing."""

    modes: Mapping[str, Mapping[str, float]]
    scales: Mapping[str, Tuple[Tuple[float, float], ...]]
    """(slowdown, total pressure at which typical jobs slow down by it): see `budget`."""
    turns: Turns
    priority: Priority
    card: Mapping[str, Any]


def load_of(utilization: Utilization) -> JobLoad:
    """What a prediction says of a job."""
    return JobLoad(
        utilization.sm_active / 100,
        utilization.sm_occupancy / 100,
        utilization.dram_active / 100,
        utilization.step_seconds,
    )


def loads_of(utilization: Utilization) -> Tuple[JobLoad, ...]:
    """The loads that a prediction leaves possible: its own, and where it is not known, its ends as well."""
    usual = load_of(utilization)
    if utilization.is_known:
        return (usual,)
    ends = (end / 100 for end in utilization.intervals["sm_active"])
    return (usual, *(usual._replace(active=end, occupancy=min(usual.occupancy, end)) for end in ends))


def usual_utilization(active: float, source: str) -> Utilization:
    """A job that keeps a GPU this busy (0 to 1) and is usual in all else."""
    percent = 100 * active
    occupancy, dram = _USUAL_OCCUPANCY * percent, _USUAL_DRAM * percent
    return Utilization(percent, occupancy, dram, _USUAL_STEP, {}, 1.0, False, source, False)


def traits(job: JobLoad) -> Tuple[float, float, float]:
    """By TRAITS: warps and memory traffic for each active multiprocessor, length of a step."""
    active = max(job.active, 0.02)
    return (
        min(job.occupancy / active, 1.0) - _USUAL_OCCUPANCY,
        min(job.dram / active, 1.0) - _USUAL_DRAM,
        log(max(_STEPS[0], min(_STEPS[1], job.step)) / _USUAL_STEP),
    )


def pressure(job: JobLoad, known: Mapping[str, float]) -> float:
    """How hard a job presses on its neighbours; about its activity."""
    exponent = sum(known[f"press_{name}"] * value for name, value in zip(TRAITS, traits(job)))
    return job.active * known["pressure"] * exp(max(-_STEEPEST, min(_STEEPEST, exponent)))


def sensitivity(job: JobLoad, known: Mapping[str, float]) -> float:
    """How much a job loses by waiting, for each unit of its neighbours' pressure."""
    exponent = sum(known[f"suffer_{name}"] * value for name, value in zip(TRAITS, traits(job)))
    exponent += known["suffer_idle"] * (0.5 - job.active)
    return known["sensitivity"] * exp(max(-_STEEPEST, min(_STEEPEST, exponent)))


class Prepared(NamedTuple):
    """A job under one mode's coefficients, worked out once for many questions."""

    own: float
    alone: float
    roundness: float
    pressure: float
    sensitivity: float
    active: float
    busy: bool

    def stretch(self, others: float) -> float:
        """A step beside neighbours of that pressure over one alone: 1 or more, never less for more of it."""
        beside: float = (1 + (self.own + others) ** self.roundness) ** (1 / self.roundness)
        return beside / self.alone + others * self.sensitivity


def prepare(job: JobLoad, known: Mapping[str, float]) -> Prepared:
    """The job's own numbers in a mode."""
    own, roundness = known["own"] * job.active, known["roundness"]
    alone, presses, suffers = rounded(own, roundness), pressure(job, known), sensitivity(job, known)
    return Prepared(own, alone, roundness, presses, suffers, job.active, job.busy)


def stretch(job: JobLoad, others: float, known: Mapping[str, float]) -> float:
    """The same for one question."""
    return prepare(job, known).stretch(others)


def rounded(load: float, roundness: float) -> float:
    """max(1, load) without its corner."""
    return float((1 + load**roundness) ** (1 / roundness))


# -- The file --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def packaged() -> Interference:
    """The package's own model."""
    return fitted(data_file("models/fitted", FILE), FORMAT, from_json)


def from_json(content: Any) -> Interference:
    """What a file says."""
    modes = {mode: content["modes"][mode] for mode in MODES}
    priority = content["priority"]
    return Interference(
        {mode: {name: part["coefficients"][name] for name in NAMES} for mode, part in modes.items()},
        {mode: _scale(part["scale"]) for mode, part in modes.items()},
        Turns(**{**content["turns"], "scale": _scale(content["turns"]["scale"])}),
        Priority(priority["eased"], priority["raised"], _scale(priority["scale"])),
        content.get("card", {}),
    )


def _scale(points: Any) -> Tuple[Tuple[float, float], ...]:
    return tuple((slow, total) for slow, total in points)


# How fast each job of a set runs, by the way in which the GPU is shared and by whose jobs they are.
#
# Clients of one MPS server run side by side, at one server for all users busy ones with a lower priority.
# The servers of different users take turns: kernels of two users never overlap, those of one user do.
# Without MPS every process takes turns with every other, in the same way: what the sets of several users
# taught predicts the sets without MPS better (0.04 of a job's speed) than coefficients that were fitted on
# these (0.07; `python -m lab.score.command --utilization`).

PER_USER, SHARED, TIMESLICE = "per-user", "shared", "timeslice"
WAYS = (PER_USER, SHARED, TIMESLICE)
"""A server for each user, one for all users, none."""
EQUAL = "equal"
"""One server for all users without priorities: what most measured sets had."""
SIDE, TURNS = "mps", "timeslice"
"""The coefficients of jobs side by side, and those that bound shares of jobs in turns."""


class Sharer(Protocol):
    """A job on a GPU, as far as the speeds there depend on it."""

    @property
    def user(self) -> str: ...
    @property
    def side(self) -> Prepared: ...


@lru_cache(maxsize=65_536)
def prepared(load: JobLoad) -> Prepared:
    """A load side by side with others."""
    return prepare(load, packaged().modes[SIDE])


def speeds(way: str, jobs: Sequence[Sharer], turns: Optional[Turns] = None) -> List[float]:
    """The share of its speed alone that each job keeps; `way` is one of WAYS, or EQUAL.

    `turns` of servers are the package's own where none are given.
    """
    if len(jobs) == 1:
        return [1.0]
    if way == TIMESLICE:
        return _in_turns(jobs, range(len(jobs)), turns or packaged().turns)
    if way == SHARED:
        return by_priority([job.side for job in jobs], packaged().priority)
    users = [job.user for job in jobs]
    if way == EQUAL or len(set(users)) == 1:
        return _together([job.side for job in jobs])
    return _in_turns(jobs, users, turns or packaged().turns)


def _together(jobs: Sequence[Prepared]) -> List[float]:
    total = sum([job.pressure for job in jobs])
    return [_speed(job, total - job.pressure) for job in jobs]


def by_priority(jobs: Sequence[Prepared], priority: Priority) -> List[float]:
    """Speeds at one server for all users."""
    busy = sum([job.pressure for job in jobs if job.busy])
    light = sum([job.pressure for job in jobs if not job.busy])
    on_busy, on_light = busy + priority.raised * light, light + priority.eased * busy
    return [_speed(job, (on_busy if job.busy else on_light) - job.pressure) for job in jobs]


def _in_turns(jobs: Sequence[Sharer], owners: Sequence[Hashable], turns: Turns) -> List[float]:
    """Side by side with jobs of the same owner, in turns with those of others."""
    side: Dict[Hashable, float] = {}
    idle: Dict[Hashable, float] = {}
    for job, owner in zip(jobs, owners):
        side[owner] = side.get(owner, 0.0) + job.side.pressure
        idle[owner] = idle.get(owner, 1.0) * (1 - min(job.side.active, 1.0))
    needs = {owner: 1 - share**turns.need for owner, share in idle.items()}
    granted = _fair(needs, turns.capacity)
    return [
        _speed(job.side, side[owner] - job.side.pressure) * granted[owner] / max(needs[owner], 1e-9)
        for job, owner in zip(jobs, owners)
    ]


def _fair(needs: Mapping[Hashable, float], capacity: float) -> Dict[Hashable, float]:
    """Time for each: what it needs where that is little, and an equal part of the rest for the others."""
    granted: Dict[Hashable, float] = {}
    left = capacity
    for owner in sorted(needs, key=lambda owner: needs[owner]):
        granted[owner] = min(needs[owner], left / (len(needs) - len(granted)))
        left -= granted[owner]
    return granted


def _speed(job: Prepared, others: float) -> float:
    # A sum less one of its parts may come out a hair under 0.
    return 1 / job.stretch(others) if others > 1e-9 else 1.0
