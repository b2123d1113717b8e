"""Fit what a job weighs where users take turns, and how much weight a GPU takes: `python -m lab.fit.turns`.

Queues of jobs of the measured sets and of the rehearsals are played on one H200; the weight of a turn and the
scales by limit at which their mean time to completion is least go into the part `turns` of
models/fitted/interference.json. Bounds hold with any of them. It is judged on the third of the models that a
fit on the others has not seen, and on measured sets of several users: what they did, and what would be said.
"""

from __future__ import annotations

import hashlib
import json
import random
from math import ceil
from statistics import fmean
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from lab.places import FITTED
from lab.score.pairs import PREFIX
from lab.score.replayed import DOCS, rates_of
from lab.score.sets import model_of
from lab.score.short_queue import QUEUE, RUNS
from lab.shared_speeds import load_from, usual_load
from lab.simulate.policies import find_policy
from lab.utilization_runs import load_sets
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob, Timing
from slurm_gpumem.site.queue_order import PATIENCE_S
from slurm_gpumem.utilization.budget import slowed_in_turns, turns_budget
from slurm_gpumem.utilization.interference import (
    FILE,
    PER_USER,
    Interference,
    JobLoad,
    from_json,
    packaged,
)

LIMITS = (1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
LEAST = (0.15, 0.2, 0.25, 0.3)
USUAL = 3.5
"""What setup writes for most new sites: the weight of a turn is chosen for it."""
_TOTALS = tuple(round(0.4 + 0.1 * step, 2) for step in range(13))
_SHARDS, _QUEUES, _JOBS, _USERS = 140, 12, 24, 3
_STARTUP_S, _SECONDS = 10.0, (10, 34)
"""As in `lab.score.short_queue`."""
_GPU = Fleet(nodes=1, gpus_per_node=1, memory_mib=_SHARDS * 1024)
Named = Dict[str, JobLoad]


class Fitted(NamedTuple):
    """What a turn weighs, and the scale of each limit."""

    least: float
    scale: Tuple[Tuple[float, float], ...]


def completion(jobs: Sequence[JobLoad], limit: float, model: Interference) -> float:
    """Mean time to completion of queues of these, as a part of that one after another: half of them jobs of
    three users, half equal tasks of one."""
    total = dict(model.turns.scale)[limit]
    shares = {job: turns_budget(job, limit, total, model, PER_USER).share for job in set(jobs)}
    timing = Timing(backfill_s=2.0, reserve_after_s=float(PATIENCE_S))
    setup = Setup(_GPU, find_policy("slurm-pack"), "trace", "mps", timing)
    found = []
    for seed in range(_QUEUES):
        rng = random.Random(seed)
        one, queue = rng.choice(jobs), []
        for number in range(_JOBS):
            load, work = rng.choice(jobs), _STARTUP_S + rng.randint(*_SECONDS)
            user = str(number % _USERS)
            if seed % 2:
                load, work, user = one, _STARTUP_S + fmean(_SECONDS), ""
            asked = {"trace": ceil(shares[load] * _SHARDS - 1e-9) * 1024}
            job = SimJob(number, 0.0, work, 1, 1024, load, startup_s=_STARTUP_S, user=user, estimates=asked)
            queue.append(job._replace(limit=3600.0))
        clock, ends = 0.0, []
        for job in queue:
            clock += job.work
            ends.append(clock)
        found.append(fmean(simulate(queue, setup).end) / fmean(ends))
    return fmean(found)


def fit(jobs: Sequence[JobLoad], limits: Sequence[float] = LIMITS) -> Fitted:
    """The best on these jobs."""

    def scaled(one: float, limit: float) -> Tuple[float, float]:
        """Completion and total."""
        return min(
            (completion(jobs, limit, with_turns(Fitted(one, ((limit, total),)))), total) for total in _TOTALS
        )

    chosen = min(LEAST, key=lambda one: scaled(one, USUAL))
    return Fitted(chosen, tuple((limit, scaled(chosen, limit)[1]) for limit in limits))


def with_turns(fitted: Fitted) -> Interference:
    """The package's model with these."""
    model = packaged()
    return model._replace(turns=model.turns._replace(least=fitted.least, scale=fitted.scale))


def third_of(job: str) -> int:
    """Which third a measured job belongs to, by its model."""
    return int(hashlib.sha256(model_of(job).encode()).hexdigest(), 16) % 3


def held_out(named: Named) -> Iterator[str]:
    """Each third by a fit on the others, and by one on itself."""
    yield "third  jobs  turn  scale at 3.5  completion  best there"
    for third in range(3):
        inside = [load for name, load in named.items() if third_of(name) == third]
        outside = [load for name, load in named.items() if third_of(name) != third]
        by_others, by_itself = fit(outside, (USUAL,)), fit(inside, (USUAL,))
        got, best = (completion(inside, USUAL, with_turns(one)) for one in (by_others, by_itself))
        scale = dict(by_others.scale)[USUAL]
        yield f"{third:>5}{len(inside):>6}{by_others.least:>6g}{scale:>14g}{got:>12.2f}{best:>12.2f}"


def measured(fitted: Fitted, limit: float = USUAL) -> Iterator[str]:
    """Sets of several users: those that the rule puts on a GPU, and the others."""
    model, total = with_turns(fitted), dict(fitted.scale)[limit]
    groups: Dict[bool, List[Tuple[float, float]]] = {True: [], False: []}
    for one in [*load_sets(), *load_sets(prefix=PREFIX)]:
        if one.mode == PER_USER and len(set(one.users)) > 1:
            loads = [load_from(solo) for solo in one.solo]
            shares = [turns_budget(load, limit, total, model, PER_USER).share for load in loads]
            most_said = [
                slowed_in_turns(load, total * (1 - share), model, PER_USER)
                for load, share in zip(loads, shares)
            ]
            above = max(1 / speed / most for speed, most in zip(one.speeds, most_said))
            groups[sum(shares) <= 1 + 1e-9].append((sum(one.speeds), above))
    for shared, name in ((True, "may share"), (False, "may not")):
        works = sorted(work for work, _ in groups[shared])
        if works:
            did = f"work {works[0]:.2f} to {works[-1]:.2f}, mean {fmean(works):.2f}"
            most = max(above for _, above in groups[shared])
            said = f"; slowdown at most {most:.2f} of what is said" if shared else ""
            yield f"{name}: {len(works)} measured sets, {did}{said}"


def main() -> int:
    """Judge, then fit all and write."""
    named = {name: load_from(solo) for one in load_sets() for name, solo in zip(one.jobs, one.solo)}
    rates = rates_of(DOCS / RUNS[0])
    for place, (kind, _) in enumerate(QUEUE):
        named[f"{kind}@{place}"] = usual_load(rates[kind]["sm"], 1 / rates[kind]["steps_per_s"])
    print("\n".join(held_out(named)))
    found = fit(list(named.values()))
    content: Dict[str, Any] = json.loads((FITTED / FILE).read_text())
    content["turns"].update(found._asdict())
    from_json(content)
    (FITTED / FILE).write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(f"a turn weighs {found.least:g}; scale by limit: {found.scale}")
    print("\n".join(measured(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
