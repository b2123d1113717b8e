"""The share of a GPU that keeps every job of a set within the slowdown which the site accepts.

With p the pressure of a job and t the most pressure of others at which it still keeps within the slowdown,
its share is max(p / S, 1 - t / S), where S is the same number for all jobs of a site. Whatever jobs share a
GPU then, while their shares add up to 1 at most, the others of a job press with at most S · (1 - its share)
≤ t. So Slurm's own sum of shards keeps the bound, whichever jobs come together. S only decides how well
usual jobs pack; it is the sum of pressures that usual jobs tolerate at that slowdown.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.utilization.interference import (
    MODES,
    Interference,
    JobLoad,
    load_of,
    packaged,
    prepare,
    pressure,
)
from slurm_gpumem.utilization.sets import SHARED, SIDE, TURNS

_MOST = 64.0
"""No set of jobs presses harder: a job that tolerates this much tolerates everything."""
_STEPS = 40


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
    utilization: Utilization, max_slowdown: float, site_slowdown: float, mode: str = "mps"
) -> Budget:
    """The share of a job that accepts `max_slowdown`, on a site that accepts `site_slowdown`.

    `mode` is one of `interference.MODES`, or of `sets.WAYS`: with a server for each user neighbours may be
    somebody else's, with whose jobs it takes turns.
    """
    model = packaged()
    mode = coefficients_of(mode)
    return budget(load_of(utilization), max_slowdown, scale(model, site_slowdown, mode), model.modes[mode])


def coefficients_of(way: str) -> str:
    """The mode of `interference.MODES` in which a way of sharing keeps its bound beside anybody's jobs."""
    return way if way in MODES else SIDE if way == SHARED else TURNS


def asked_share(share: float, max_slowdown: float) -> float:
    """What a job asks for by its activity: two jobs that take turns each take twice as long, so with a limit
    of 2 or more half a GPU is enough, and any two jobs can share one."""
    return min(share, 0.5) if max_slowdown >= 2 else share


def worst_slowdown(utilization: Utilization, share: float, site_slowdown: float, mode: str = "mps") -> float:
    """How many times as long its step takes where others fill up a GPU of which it has that share."""
    model = packaged()
    mode = coefficients_of(mode)
    beside = scale(model, site_slowdown, mode) * max(0.0, 1 - share)
    return prepare(load_of(utilization), model.modes[mode]).stretch(beside)


def budget(job: JobLoad, max_slowdown: float, total: float, known: Mapping[str, float]) -> Budget:
    """The same from a job's metrics, with S given as `total`."""
    own, tolerated = pressure(job, known), tolerance(job, max_slowdown, known)
    taken, needed = own / total, 1 - tolerated / total
    share = min(1.0, max(taken, needed, 0.0))
    return Budget(share, own, tolerated, "tolerance" if needed > taken else "pressure")


def tolerance(job: JobLoad, max_slowdown: float, known: Mapping[str, float]) -> float:
    """The most pressure of others at which the job's step is at most `max_slowdown` times as long."""
    low, high = 0.0, _MOST
    stretch = prepare(job, known).stretch
    if stretch(high) <= max_slowdown:
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if stretch(middle) <= max_slowdown:
            low = middle
        else:
            high = middle
    return low


def scale(model: Interference, slowdown: float, mode: str) -> float:
    """The S of a site: between the points of the file, and as its ends beyond them."""
    return interpolated(model.scales[mode], slowdown)


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
