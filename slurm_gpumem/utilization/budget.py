"""The share of a GPU that keeps every job of a set within the slowdown which the site accepts.

Slurm adds up shares and knows nothing else of the jobs that meet, so each bound here is a sum.

Jobs side by side (one MPS server): with p the pressure of a job and t the most pressure of others at which
it still keeps within the slowdown, its share is max(p / S, 1 - t / S), where S is the same number for all
jobs of a site. Whatever jobs share a GPU then, while their shares add up to 1 at most, the others of a job
press with at most S · (1 - its share) ≤ t. S only decides how well usual jobs pack; it is the sum of
pressures that usual jobs tolerate at that slowdown. A busy job runs with a lower priority, so that its
others may press harder by a factor: it tolerates that much less. Light jobs only gain by priorities.

Jobs in turns (a server for each user, or none): a job that wants n of the time gets all of it or as much as
the others get at most. With a limit of λ everybody is to get 1 / λ, so a share is min(n, 1 / λ) / capacity:
while shares add up to 1, nobody gets less. With a server for each user a job's neighbours may be anybody's:
its share is the larger of the two. Where both kinds meet, what a job loses to either multiplies, up to
1 / capacity above the limit. `python -m lab.score.mixes` prints how far each limit holds.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.utilization.interference import (
    PER_USER,
    SHARED,
    SIDE,
    TIMESLICE,
    Interference,
    JobLoad,
    Turns,
    loads_of,
    packaged,
    prepare,
    pressure,
)

_MOST = 64.0
"""No set of jobs presses harder: a job that tolerates this much tolerates everything."""
_STEPS = 40
_MOST_OF_USERS = 3.0
"""The largest limit that counts where users take turns: with more, three busy jobs fit, and what two of one
user lose to each other multiplies with what they lose to the third."""


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
    if way == PER_USER:
        max_slowdown, site_slowdown = min(max_slowdown, _MOST_OF_USERS), min(site_slowdown, _MOST_OF_USERS)
    harder = raised(job, model, way)
    side = budget(job, max_slowdown, scale(model, site_slowdown, way), model.modes[SIDE], harder)
    turns = turns_budget(job, max_slowdown, site_slowdown, model.turns)
    chosen = {SHARED: (side,), TIMESLICE: (turns,)}.get(way, (turns, side))
    found = max(chosen, key=lambda one: one.share)
    return found._replace(share=asked_share(found.share, max_slowdown, way))


def asked_share(share: float, max_slowdown: float, way: str) -> float:
    """What a job asks for by its activity: two jobs that take turns each take twice as long, and what that
    costs; so with a limit of 2 or more half a GPU is enough, and any two jobs can share one. At one server
    for all, where none take turns, shares as computed keep the limit and pack as well without that."""
    return min(share, 0.5) if max_slowdown >= 2 and way != SHARED else share


def turns_budget(job: JobLoad, max_slowdown: float, site_slowdown: float, turns: Turns) -> Budget:
    """The share of a job that takes turns with all others; pressure and tolerance are parts of the time."""
    need, part = turns.need_of(job.active), 1 / site_slowdown
    taken = min(need, part) / turns.capacity
    wanted = need / max_slowdown
    # Where it gets `wanted`, others take up to as much: wanted / part of what their shares stand for.
    needed = 1 - part * (1 / wanted - 1 / turns.capacity) if wanted > part else 0.0
    share = min(1.0, max(taken, needed))
    return Budget(share, need, wanted, "tolerance" if needed > taken else "pressure")


def worst_slowdown(utilization: Utilization, share: float, site_slowdown: float, way: str = SHARED) -> float:
    """How many times as long its step takes where others fill up a GPU of which it has that share."""
    return max(worst_of(load, share, site_slowdown, way) for load in loads_of(utilization))


def worst_of(job: JobLoad, share: float, site_slowdown: float, way: str) -> float:
    """The same from a job's metrics."""
    model = packaged()
    site_slowdown = min(site_slowdown, _MOST_OF_USERS) if way == PER_USER else site_slowdown
    beside = scale(model, site_slowdown, way) * max(0.0, 1 - share) * raised(job, model, way)
    side = prepare(job, model.modes[SIDE]).stretch(beside)
    if way == SHARED:
        return side
    capacity, part = model.turns.capacity, 1 / site_slowdown
    left = capacity * (1 - min(share, 1.0))
    level = capacity / (1 + left / part) if share * capacity >= part else capacity * share
    in_turns = max(1.0, model.turns.need_of(job.active) / level)
    return in_turns if way == TIMESLICE else max(side, in_turns)


def raised(job: JobLoad, model: Interference, way: str) -> float:
    """How much harder others press on the job by their priority, at most."""
    return model.priority.raised if way == SHARED and job.busy else 1.0


def budget(
    job: JobLoad, max_slowdown: float, total: float, known: Mapping[str, float], harder: float = 1.0
) -> Budget:
    """The same from a job's metrics, with S given as `total`; others press `harder` than on equals."""
    own, tolerated = pressure(job, known), tolerance(job, max_slowdown, known) / harder
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


def scale(model: Interference, slowdown: float, way: str) -> float:
    """The S of a site: between the points of the file, and as its ends beyond them."""
    return interpolated(model.priority.scale if way == SHARED else model.scales[SIDE], slowdown)


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
