"""Which MIG layout would have served a site's own jobs best.

A plan says how many GPUs stay whole and how many get which layout. A job on one GPU asks for the smallest
profile of the plan that holds its request and is fast enough, as `gpusbatch` does, else for a whole GPU;
jobs on several GPUs get whole ones. Slurm gives out each type by itself, so each is played by itself, with
backfill.

The plan is found step by step: the change of some GPUs, from one to all of them, that shortens the
time from submission to end the most, until none does. Whole GPUs stay together: they fill nodes, the last
one as far as they go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.estimators.mig import Profile, profiles_of
from slurm_gpumem.estimators.mig_layouts import Layout, counted, layouts
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.figures import waits_of
from slurm_gpumem.simulation.gpu_use import GpuUse
from slurm_gpumem.simulation.policies import POLICIES, timing_of
from slurm_gpumem.simulation.pools import Pool
from slurm_gpumem.simulation.prior import PRIORS, Prior
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob
from slurm_gpumem.simulation.what_if import to_trace

WHOLE_GPU = "whole"
AS_IT_IS, PLANNED, SHARES = WAYS = ("whole GPUs", "this layout", "shares")
"""Ways to run the jobs; shares are of whole GPUs, by memory and activity."""
_MOST_SEARCHED = 1000
"""Jobs that plans are compared on: the last ones of the history. What is shown is played with all."""
_MOST_CHANGES = 8
_PARTS = (1, 2, 4, 8)
"""Parts of the fleet that change together, beside the least."""
_SMALL = 64
"""Fleets of up to this number of GPUs are changed down to the single one, larger ones node by node."""
_WORTH = 0.005
"""A change that shortens the time by less than this part is not worth a layout of its own."""

Plan = Mapping[Layout, int]
"""GPUs by layout; those under () stay whole."""


class PlanFigures(NamedTuple):
    """What became of the jobs under one plan."""

    waiting_h: float
    waiting_p95_h: float
    completion_h: float
    """Submission to end, mean."""
    slowdown: float
    """Mean, of jobs on one GPU."""
    over_limit: int
    asked: Mapping[str, int]
    """Jobs on one GPU by what they asked for."""
    slow: int
    """Of those: jobs that a smaller profile would hold but slow down too much."""


class MigPlan(NamedTuple):
    """The answer for one pool."""

    pool: Pool
    gpu: str
    """The table's name for its GPUs."""
    plan: Plan
    figures: Mapping[str, Mapping[str, PlanFigures]]
    """By assumption, then by way: WAYS."""
    tried: int
    """Plans that were played."""
    searched: int
    """Jobs that they were compared on."""


@dataclass
class _Player:
    """Plays plans on one trace; what is the same in two plans is played once."""

    jobs: Sequence[SimJob]
    fleet: Fleet
    profiles: Mapping[str, Profile]
    sms: int
    max_slowdown: float
    played: Dict[Tuple[str, int, Tuple[str, ...]], Outcome] = field(default_factory=dict)
    tried: int = 0

    def play(self, plan: Plan) -> Optional[PlanFigures]:
        """None for a plan under which some job has no place."""
        self.tried += 1
        instances: Dict[str, int] = {}
        for layout, gpus in plan.items():
            for name, each in counted(layout).items():
                instances[name] = instances.get(name, 0) + gpus * each
        offered = sorted(instances, key=lambda name: (self.profiles[name].mib, self.profiles[name].slices))
        by_type, slow = self._by_type(offered)
        outcomes = []
        for kind, jobs in by_type.items():
            number = plan.get((), 0) if kind == WHOLE_GPU else instances[kind]
            if not jobs:
                continue
            if number < max(job.gpus for job in jobs):
                return None
            # What is asked of a type depends on the smaller ones of the plan.
            smaller = tuple(offered if kind == WHOLE_GPU else offered[: offered.index(kind)])
            key = (kind, number, smaller)
            if key not in self.played:
                self.played[key] = self._simulate(kind, number, jobs)
            outcomes.append(self.played[key])
        asked = {kind: sum(job.gpus == 1 for job in jobs) for kind, jobs in by_type.items()}
        return _figures(outcomes, {job.number: job for job in self.jobs}, asked, slow)

    def shared(self) -> PlanFigures:
        """The same jobs with shares of whole GPUs that keep the same slowdown."""
        policy = POLICIES["slurm-pack"]._replace(by_activity=self.max_slowdown)
        outcome = simulate(self.jobs, Setup(self.fleet, policy, "text", "mps", timing_of(policy)))
        return _figures([outcome], {job.number: job for job in self.jobs}, {}, 0)

    def _by_type(self, offered: Sequence[str]) -> Tuple[Dict[str, List[SimJob]], int]:
        found: Dict[str, List[SimJob]] = {name: [] for name in (*offered, WHOLE_GPU)}
        slow = 0
        for job in self.jobs:
            kind, passed = self._asks_for(job, offered)
            found[kind].append(job if kind == WHOLE_GPU else self._on_instance(job, self.profiles[kind]))
            slow += passed
        return found, slow

    def _asks_for(self, job: SimJob, offered: Sequence[str]) -> Tuple[str, bool]:
        """What it asks for, and whether something smaller was too slow."""
        passed = False
        for name in offered if job.gpus == 1 else ():
            if job.estimates["text"] <= self.profiles[name].mib:
                if self._slowdown(job, self.profiles[name]) <= self.max_slowdown:
                    return name, passed
                passed = True
        return WHOLE_GPU, passed

    def _slowdown(self, job: SimJob, profile: Profile) -> float:
        part = (profile.sms or self.sms * profile.slices / (profile.most_slices + 1)) / self.sms
        return max(1.0, job.load.active / part)

    def _on_instance(self, job: SimJob, profile: Profile) -> SimJob:
        return job._replace(work=job.work * self._slowdown(job, profile))

    def _simulate(self, kind: str, number: int, jobs: Sequence[SimJob]) -> Outcome:
        per_node, memory = number, self.fleet.memory_mib
        if kind == WHOLE_GPU:
            per_node = self.fleet.gpus_per_node
        else:
            memory = self.profiles[kind].mib
        nodes = -(-number // per_node)
        fleet = self.fleet._replace(
            nodes=nodes, gpus_per_node=per_node, memory_mib=memory, missing=nodes * per_node - number
        )
        policy = POLICIES["slurm"]
        return simulate(jobs, Setup(fleet, policy, "text", "exclusive", timing_of(policy)))


def mig_plan(
    pool: Pool,
    records: Mapping[str, GpuUse],
    *,
    max_slowdown: float,
    priors: Sequence[str],
    progress: Callable[[str], None] = lambda words: None,
) -> Optional[MigPlan]:
    """The best plan that was found for a pool; None where its GPUs cannot be divided."""
    gpu = closest_gpu(pool.gpu_type or pool.fleet.name, None)
    able = layouts(gpu.entry)
    if not able or not gpu.sms or gpu.profile:
        return None
    recent = pool._replace(jobs=tuple(sorted(pool.jobs, key=lambda job: job.submit)[-_MOST_SEARCHED:]))

    def player(prior: Prior, of: Pool) -> _Player:
        profiles = {profile.name: profile for profile in profiles_of(gpu.entry)}
        return _Player(to_trace(of, prior, records), of.fleet, profiles, gpu.sms or 1, max_slowdown)

    search = player(PRIORS["middle"], recent)
    plan = _search(search, pool.fleet, able, progress)
    figures: Dict[str, Mapping[str, PlanFigures]] = {}
    for name in priors:
        progress(f"playing {len(pool.jobs):,} jobs")
        playing = player(PRIORS[name], pool)
        ways = {
            AS_IT_IS: playing.play({(): pool.fleet.gpus}),
            # Under another assumption a job may need what the plan does not have.
            PLANNED: playing.play(plan),
            SHARES: playing.shared(),
        }
        figures[name] = {way: found for way, found in ways.items() if found is not None}
    return MigPlan(pool, gpu.entry, plan, figures, search.tried, len(recent.jobs))


def _search(
    player: _Player, fleet: Fleet, able: Sequence[Layout], progress: Callable[[str], None]
) -> Dict[Layout, int]:
    plan: Dict[Layout, int] = {(): fleet.gpus}
    before = player.play(plan)
    if before is None:
        return plan
    best, seen = before.completion_h, {frozenset(plan.items())}
    for _ in range(_MOST_CHANGES):
        found: Optional[Tuple[float, Dict[Layout, int]]] = None
        for changed in (each for step in _steps(fleet) for each in _changes(plan, able, step)):
            if frozenset(changed.items()) in seen:
                continue
            seen.add(frozenset(changed.items()))
            progress(f"comparing layouts, {player.tried} so far")
            figures = player.play(changed)
            if figures is not None and figures.completion_h < (found[0] if found else best):
                found = (figures.completion_h, changed)
        if found is None or found[0] > best * (1 - _WORTH):
            break
        best, plan = found
    return plan


def _steps(fleet: Fleet) -> List[int]:
    """How many GPUs may change together: one that is divided alone would draw more jobs than it can serve."""
    least = 1 if fleet.gpus <= _SMALL else fleet.gpus_per_node
    parts = {max(least, fleet.gpus // part // least * least) for part in _PARTS}
    return sorted({least, *parts}, reverse=True)


def _changes(plan: Plan, able: Sequence[Layout], step: int) -> Iterator[Dict[Layout, int]]:
    """Plans in which `step` GPUs have another layout."""
    for old, gpus in plan.items():
        for new in ((), *able):
            if new != old and gpus >= step:
                changed = {**plan, old: gpus - step, new: plan.get(new, 0) + step}
                yield {layout: number for layout, number in changed.items() if number}


def _figures(
    outcomes: Sequence[Outcome], jobs: Mapping[int, SimJob], asked: Mapping[str, int], slow: int
) -> PlanFigures:
    # On an instance a job's work is stretched already: what it takes on a whole GPU is in `jobs`.
    times = waits_of(outcomes, lambda job: jobs[job.number].work)
    return PlanFigures(
        waiting_h=times.waiting_h,
        waiting_p95_h=times.waiting_p95_h,
        completion_h=times.completion_h,
        slowdown=times.slowdown,
        over_limit=sum(outcome.over_limit for outcome in outcomes),
        asked=asked,
        slow=slow,
    )
