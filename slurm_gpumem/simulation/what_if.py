"""A site's own history, played again without and with sharing.

Every job of the history arrives when it did, on the GPUs of its pool, and takes as long alone as it took
then. Three ways to run them: whole GPUs with backfill, as Slurm does without this package; shares by
memory; shares by memory and activity, so that a slowdown is kept. Jobs on several GPUs get whole ones in
all three.
"""

from __future__ import annotations

from math import exp, isnan
from random import Random
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.formats.jobstats import read_summary
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.pools import Pool
from slurm_gpumem.simulation.types import Policy, Setup, SimJob, Timing
from slurm_gpumem.slurm.state.history import PastJob
from slurm_gpumem.utilization.interference import JobLoad, packaged

# What is known of a past job's GPU memory and activity, and from whom.
#
# In this order: our own job records, Slurm's gres/gpumem and gres/gpuutil, jobstats' summary in the admin
# comment ("JS1:" and base64 of JSON, compressed or not). What none of them knows is assumed (what_if.py).

RECORDS, SLURM, JOBSTATS, ASSUMED = "job records", "gres/gpumem", "jobstats", "assumed"
SOURCES = (RECORDS, SLURM, JOBSTATS, ASSUMED)
_MIB = 1 << 20


class GpuUse(NamedTuple):
    """Measured use of one GPU of a job."""

    mib: int
    """The most on any one GPU."""
    active: Optional[float]
    """SM activity, 0 to 1; None where only memory is known."""
    source: str


def gpu_use(job: PastJob, records: Mapping[str, GpuUse]) -> Optional[GpuUse]:
    """The best that is known; None where nothing is."""
    found = records.get(job.job_id)
    if found is not None:
        return found
    if job.gpu_mib is not None and job.gpus == 1:
        return GpuUse(int(job.gpu_mib) + 1, _active(job.gpu_util), SLURM)
    return read_jobstats(job.comment)


def read_jobstats(comment: str) -> Optional[GpuUse]:
    """The GPU's part of a jobstats summary; None where it has none or is damaged."""
    try:
        nodes = (read_summary(comment) or {})["nodes"]
        memory = [float(value) for node in nodes.values() for value in _values(node, "gpu_used_memory")]
        busy = [float(value) for node in nodes.values() for value in _values(node, "gpu_utilization")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not memory or not 0 < max(memory) < 1 << 50:
        return None
    share = max(0.0, min(1.0, sum(busy) / len(busy) / 100)) if busy else None
    return GpuUse(int(max(memory) / _MIB) + 1, _active(share), JOBSTATS)


def _active(busy: Optional[float]) -> Optional[float]:
    # Slurm and jobstats count the time with any kernel on the GPU, however small.
    return None if busy is None else packaged().turns.active_at(busy)


def _values(node: Any, name: str) -> Any:
    found = node.get(name) or {}
    return found.values()


# What a job is taken for where nobody measured its GPU memory and activity: an assumption, with its range.
#
# Three assumptions are made, wide apart on purpose, and what follows from a simulation is given as a range
# over them. None of them is a measurement: a site that records gres/gpumem and gres/gpuutil needs none.
#
#     low     half of the jobs use up to 10 % of their GPU's memory; mean SM activity 15 %
#     middle  half of the jobs use up to 25 %; mean SM activity 35 %
#     high    half of the jobs use up to 50 %; mean SM activity 55 %
#
# Sizes are drawn log-normally, so that a tenth of the jobs use at least 3.6 times the median. Activities
# are drawn evenly between none and twice the mean.


SPREAD = 1.0
"""Of the logarithm of the memory's share."""
_LEAST_MIB = 600
"""A CUDA context with nothing in it."""
_OCCUPANCY, _DRAM = 0.4, 0.4
"""For each active multiprocessor, as in the jobs that the project measured."""
_STEP_S = 0.03


class Prior(NamedTuple):
    """One guess about jobs of which nothing was measured."""

    share: float
    """Of the GPU's memory: the median."""
    active: float
    """SM activity: the mean."""


PRIORS: Mapping[str, Prior] = {"low": Prior(0.1, 0.15), "middle": Prior(0.25, 0.35), "high": Prior(0.5, 0.55)}


def draw_memory(prior: Prior, gpu_mib: int, rng: Random) -> int:
    """MiB of one job."""
    return max(_LEAST_MIB, min(gpu_mib, int(gpu_mib * prior.share * exp(rng.gauss(0.0, SPREAD)))))


def draw_load(prior: Prior, rng: Random) -> JobLoad:
    """Activity of one job: anything from none to twice the mean, in steps of a percent."""
    return load_at(rng.uniform(0.0, min(1.0, 2 * prior.active)))


def load_at(active: float) -> JobLoad:
    """A usual job of that activity."""
    active = round(max(0.01, min(1.0, active)), 2)
    return JobLoad(active, round(active * _OCCUPANCY, 3), round(active * _DRAM, 3), _STEP_S)


# Slurm's ways to place jobs: whole GPUs, and shards by each placement of a site.

SLURM_TIMING = Timing(recovery_s=121.0)
"""Slurm holds a requeued job back until its credential has expired (cred_expire, 120 s)."""
SLURM_POLICIES: Dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("slurm", "first", granted=True, whole=True, backfill=True),
        Policy("slurm-pack", "first", granted=True, backfill=True),
        Policy("slurm-spread", "spread", granted=True, backfill=True),
        Policy("slurm-level", "worst", granted=True, backfill=True),
    )
}


ALONE, SHARED, BOUNDED = "whole GPUs", "shared", "shared, bounded"
REQUEST_MARGIN = 0.2
"""What requests exceed the real need by: the median over all runs that estimates from a summary were judged
on."""
STARTUP_MIB, STARTUP_S = 600, 30.0
_CERTAIN = 0.02
"""Up to this share of assumed jobs, one assumption will do."""
_HOUR = 3600.0


class Totals(NamedTuple):
    """All pools together, one way to run the jobs."""

    gpu_hours: float
    """GPUs with a job on them."""
    waiting_h: float
    """Of jobs that ended, as the next two; nan where none did."""
    waiting_p95_h: float
    completion_h: float
    queue: float
    """Mean number of waiting jobs."""
    slowdown: float
    """Mean, of jobs on one GPU; 1 where there are none."""
    over_limit: int
    crashes: int
    energy_kwh: float


class GroupGain(NamedTuple):
    """One partition or user: mean hours from submission to end, without sharing and within the slowdown."""

    name: str
    jobs: int
    waited_h: float
    """As it was recorded."""
    alone_h: float
    shared_h: float


class WhatIf(NamedTuple):
    """The answer."""

    jobs: int
    single: int
    """Jobs on one GPU: those that can share."""
    users: int
    days: float
    pools: Tuple[Pool, ...]
    sources: Mapping[str, float]
    """By source of memory: share of the jobs on one GPU."""
    recorded_wait_h: float
    recorded_p95_h: float
    totals: Mapping[str, Mapping[str, Totals]]
    """By assumption, then by way; one assumption where (nearly) all is known."""
    partitions: Tuple[GroupGain, ...]
    by_user: Tuple[GroupGain, ...]
    left_out: Mapping[str, int]
    """Rows of the history that could not be played, by reason."""


class Sharing(NamedTuple):
    """How GPUs would be shared."""

    mode: str
    placement: str
    """ "pack" fills one GPU after the other, Slurm's default; "spread" is LL_SHARED_GRES,
    "level" LLN=YES besides."""
    slowdown: float
    """Of the bounded way."""


def what_if(
    pools: Sequence[Pool],
    records: Mapping[str, GpuUse],
    sharing: Sharing,
    left_out: Mapping[str, int],
    progress: Callable[[str], None] = lambda words: None,
) -> WhatIf:
    """Play all pools under every assumption that matters; `progress` hears what is being done."""
    past = [job for pool in pools for job in pool.jobs]
    single = [job for job in past if job.gpus == 1]
    sources = sources_of(past, records)
    names = assumptions(sources)
    totals: Dict[str, Mapping[str, Totals]] = {}
    gains: List[Tuple[Pool, Dict[str, Outcome]]] = []
    for number, name in enumerate(names, 1):
        progress(f"playing {len(past):,} jobs, assumption {number} of {len(names)}")
        outcomes = [(pool, _play(pool, PRIORS[name], records, sharing)) for pool in pools]
        totals[name] = {
            way: _totals([found[way] for _, found in outcomes]) for way in (ALONE, SHARED, BOUNDED)
        }
        if name == "middle":
            gains = outcomes
    waits = sorted((job.start - job.submit) / _HOUR for job in past)
    first, last = min(job.submit for job in past), max(job.end for job in past)
    return WhatIf(
        jobs=len(past),
        single=len(single),
        users=len({job.user for job in past if job.user}),
        days=(last - first) / 86_400,
        pools=tuple(pools),
        sources=sources,
        recorded_wait_h=sum(waits) / len(waits),
        recorded_p95_h=percentile(waits, 0.95),
        totals=totals,
        partitions=_gains(gains, "partition"),
        by_user=_gains(gains, "user"),
        left_out=left_out,
    )


def sources_of(jobs: Sequence[PastJob], records: Mapping[str, GpuUse]) -> Dict[str, float]:
    """By source of memory: share of the jobs on one GPU."""
    found: Dict[str, int] = {}
    for job in jobs:
        if job.gpus == 1:
            use = gpu_use(job, records)
            source = use.source if use else ASSUMED
            found[source] = found.get(source, 0) + 1
    return {name: number / sum(found.values()) for name, number in found.items()}


def assumptions(sources: Mapping[str, float]) -> List[str]:
    """Those to play: one where (nearly) all is known."""
    return list(PRIORS) if sources.get(ASSUMED, 0.0) > _CERTAIN else ["middle"]


def to_trace(pool: Pool, prior: Prior, records: Mapping[str, GpuUse]) -> List[SimJob]:
    """The pool's jobs for the simulator; the same for the same history."""
    first = min(job.submit for job in pool.jobs)
    jobs: List[SimJob] = []
    for number, job in enumerate(pool.jobs):
        rng = Random(number)
        use = gpu_use(job, records)
        memory = draw_memory(prior, pool.fleet.memory_mib, rng) if use is None else use.mib
        memory = max(1, min(memory, pool.fleet.memory_mib))
        drawn = draw_load(prior, rng)
        load = drawn if use is None or use.active is None else load_at(use.active)
        work = job.end - job.start
        jobs.append(
            SimJob(
                number, job.submit - first, work, job.gpus, memory, load, min(STARTUP_MIB, memory),
                min(STARTUP_S, work / 2), job.user, partition=job.partition, limit=job.limit_s,
                estimates={"text": int(memory * (1 + REQUEST_MARGIN)) + 1},
            )
        )  # fmt: skip
    return jobs


def _play(pool: Pool, prior: Prior, records: Mapping[str, GpuUse], sharing: Sharing) -> Dict[str, Outcome]:
    jobs = to_trace(pool, prior, records)
    shared = SLURM_POLICIES[f"slurm-{sharing.placement}"]
    ways: Dict[str, Policy] = {
        ALONE: SLURM_POLICIES["slurm"],
        SHARED: shared,
        BOUNDED: shared._replace(by_activity=sharing.slowdown),
    }
    found: Dict[str, Outcome] = {}
    for way, policy in ways.items():
        if pool.mig:
            # An instance belongs to one job, whatever is done with whole GPUs.
            policy = ways[ALONE]
        mode = "exclusive" if policy.whole else sharing.mode
        found[way] = simulate(jobs, Setup(pool.fleet, policy, "text", mode, SLURM_TIMING))
    return found


def _totals(outcomes: Sequence[Outcome]) -> Totals:
    waiting: List[float] = []
    completion: List[float] = []
    slowdowns: List[float] = []
    for outcome in outcomes:
        for job, start, end in zip(outcome.jobs, outcome.start, outcome.end):
            if isnan(end):
                continue
            waiting.append((start - job.arrival) / _HOUR)
            completion.append((end - job.arrival) / _HOUR)
            if job.gpus == 1:
                slowdowns.append((end - start) / job.work)
    return Totals(
        gpu_hours=sum(outcome.sums.busy_seconds for outcome in outcomes) / _HOUR,
        waiting_h=_mean(waiting),
        waiting_p95_h=percentile(sorted(waiting), 0.95),
        completion_h=_mean(completion),
        queue=sum(outcome.sums.waiting_seconds / (outcome.span or 1.0) for outcome in outcomes),
        slowdown=_mean(slowdowns) if slowdowns else 1.0,
        over_limit=sum(outcome.over_limit for outcome in outcomes),
        crashes=sum(sum(outcome.crashes) for outcome in outcomes),
        energy_kwh=sum(outcome.sums.joules for outcome in outcomes) / 3.6e6,
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Of sorted values: the one that `part` of them do not exceed; nan of none."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _gains(found: Sequence[Tuple[Pool, Dict[str, Outcome]]], by: str) -> Tuple[GroupGain, ...]:
    """The groups with the most jobs first."""
    sums: Dict[str, List[float]] = {}
    for pool, outcomes in found:
        for way, place in ((ALONE, 2), (BOUNDED, 3)):
            outcome = outcomes[way]
            for job, end in zip(outcome.jobs, outcome.end):
                if isnan(end):
                    continue
                row = sums.setdefault(str(getattr(job, by)), [0.0, 0.0, 0.0, 0.0])
                row[place] += (end - job.arrival) / _HOUR
                if way == ALONE:
                    row[0] += 1
                    past = pool.jobs[job.number]
                    row[1] += (past.start - past.submit) / _HOUR
    rows = [
        GroupGain(name, int(row[0]), *(value / max(1.0, row[0]) for value in row[1:]))
        for name, row in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.jobs))
