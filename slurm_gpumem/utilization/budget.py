"""The share of a GPU that keeps every job of a set within the slowdown which the site accepts.

Slurm adds up shares and knows nothing else of the jobs that meet, so each bound here is a sum.

Jobs side by side (one MPS server): with p the pressure of a job and t the most pressure of others at which
it still keeps within the slowdown, its share is max(p / S, 1 - t / S), where S is the same number for all
jobs of a site. Whatever jobs share a GPU then, while their shares add up to 1 at most, the others of a job
press with at most S · (1 - its share) ≤ t. S only decides how well usual jobs pack; it is the sum of
pressures that usual jobs tolerate at that slowdown. A busy job runs with a lower priority, so that its
others may press harder by a factor: it tolerates that much less. Light jobs only gain by priorities.

Jobs in turns (a server for each user, or none) weigh in the place of p: their pressure or their activity, and
at least as much as a turn costs the others, however little is done with it. t is the most weight of others
beside which a job keeps within the slowdown, whoever's they are: those of its own user run side by side with
it and make their server want more of the time, all others take equal turns. `python -m lab.fit.turns` fits
what a turn weighs and S, `python -m lab.score.mixes` prints how far each limit holds.
"""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.utilization.interference import (
    SHARED,
    SIDE,
    TIMESLICE,
    Interference,
    JobLoad,
    load_of,
    loads_of,
    packaged,
    prepare,
    pressure,
    usual_utilization,
)

_MOST = 64.0
"""No set of jobs side by side presses harder: a job that tolerates this much tolerates everything."""
_STEPS = 40
_NEARLY = 0.01
"""Of a turn: so little less than a whole number of them counts as that number."""


class Budget(NamedTuple):
    """A job's share of a GPU by activity, and where it comes from."""

    share: float
    """0 to 1; 1 means a GPU to itself."""
    pressure: float
    tolerance: float
    """Pressure of others at which it is as slow as accepted."""
    because: str
    """"pressure" (it takes that much) or "tolerance" (it tolerates that little)."""


def activity_budget(
    utilization: Utilization, max_slowdown: float, site_slowdown: float, way: str = SHARED
) -> Budget:
    """The share of a job that accepts `max_slowdown`, on a site that accepts `site_slowdown`.

    `way` is one of `sets.WAYS`. Where the activity is not known it is the largest that may be needed.
    """
    found = (share_for(load, max_slowdown, site_slowdown, way) for load in loads_of(utilization))
    return max(found, key=lambda one: one.share)


def share_for(job: JobLoad, max_slowdown: float, site_slowdown: float, way: str) -> Budget:
    """The same from a job's metrics."""
    model = packaged()
    if way == SHARED:
        total = interpolated(model.priority.scale, site_slowdown)
        return budget(job, max_slowdown, total, model.modes[SIDE], raised(job, model))
    total = interpolated(model.turns.scale, site_slowdown)
    return turns_budget(job, max_slowdown, total, model, way)


def turns_budget(job: JobLoad, max_slowdown: float, total: float, model: Interference, way: str) -> Budget:
    """The share of a job that takes turns with others, with S as `total`."""
    own = 0.0 if way == TIMESLICE else max(job.active, pressure(job, model.modes[SIDE]))
    most = _most(lambda others: slowed_in_turns(job, others, model, way), max_slowdown, total)
    return _share(max(model.turns.least, own), most, total)


def slowed_in_turns(job: JobLoad, weight: float, model: Interference, way: str, harder: float = 1.0) -> float:
    """How many times as long its step takes at most beside jobs of that weight, in turns with some of them;
    those of its own user may press `harder` than they weigh."""
    turns, side = model.turns, prepare(job, model.modes[SIDE])
    most = int(weight / turns.least + _NEARLY)

    def slowed(strangers: int, beside: float) -> float:
        active = 1 - (1 - min(job.active, 1.0)) * (1 - min(beside, 1.0))
        waits = turns.need_of(active) * (strangers + 1) / turns.capacity if strangers else 1.0
        return side.stretch(beside) * max(1.0, waits)

    if way == TIMESLICE:
        return slowed(most, 0.0)
    own = ((strangers, weight - strangers * turns.least) for strangers in range(most))
    return max(slowed(most, 0.0), *(slowed(strangers, harder * rest) for strangers, rest in own), 1.0)


def worst_slowdown(utilization: Utilization, share: float, site_slowdown: float, way: str = SHARED) -> float:
    """How many times as long its step takes where others fill up a GPU of which it has that share.

    Where nothing is known of its activity, it and others like it may keep the GPU busy all the time.
    """
    if utilization.source == "assumed":
        usual, full = load_of(utilization), load_of(usual_utilization(1.0, utilization.source))
        harder = full.active / max(usual.active, 0.01)
        return max(worst_of(load, share, site_slowdown, way, harder) for load in (usual, full))
    return max(worst_of(load, share, site_slowdown, way) for load in loads_of(utilization))


def worst_of(
    job: JobLoad, share: float, site_slowdown: float, way: str, harder: Optional[float] = None
) -> float:
    """The same from a job's metrics; others press as hard as their shares say, or `harder`."""
    model, left = packaged(), max(0.0, 1 - share)
    if way != SHARED:
        weight = interpolated(model.turns.scale, site_slowdown) * left
        return slowed_in_turns(job, weight, model, way, harder or 1.0)
    beside = interpolated(model.priority.scale, site_slowdown) * left
    return prepare(job, model.modes[SIDE]).stretch(beside * (harder or raised(job, model)))


def raised(job: JobLoad, model: Interference) -> float:
    """How much harder others press at one server on a job by their priority, at most."""
    return model.priority.raised if job.busy else 1.0


def budget(
    job: JobLoad, max_slowdown: float, total: float, known: Mapping[str, float], harder: float = 1.0
) -> Budget:
    """The share of a job side by side with others, with S as `total`; they press `harder` than equals."""
    return _share(pressure(job, known), tolerance(job, max_slowdown, known) / harder, total)


def _share(own: float, tolerated: float, total: float) -> Budget:
    taken, needed = own / total, 1 - tolerated / total
    share = min(1.0, max(taken, needed, 0.0))
    return Budget(share, own, tolerated, "tolerance" if needed > taken else "pressure")


def tolerance(job: JobLoad, max_slowdown: float, known: Mapping[str, float]) -> float:
    """The most pressure of others at which the job's step is at most `max_slowdown` times as long."""
    return _most(prepare(job, known).stretch, max_slowdown, _MOST)


def _most(slowed: Callable[[float], float], limit: float, high: float) -> float:
    low = 0.0
    if slowed(high) <= limit:
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if slowed(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def interpolated(points: Sequence[Tuple[float, float]], at: float) -> float:
    """The value at `at` on the line through sorted points, level beyond both ends."""
    before = points[0]
    for point in points:
        if at <= point[0]:
            width = point[0] - before[0]
            part = (at - before[0]) / width if width > 0 else 0.0
            return before[1] + max(0.0, part) * (point[1] - before[1])
        before = point
    return before[1]
