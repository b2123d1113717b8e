"""The simulator against real Slurm daemons: sleepers with shards, the same jobs in both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Callable, List, NamedTuple, Sequence, Set

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.policies import POLICIES, SLURM_TIMING
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob
from slurm_gpumem.utilization.interference import JobLoad
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

CYCLE_S = 5.0
"""The dev cluster's bf_interval."""
GPUS, SHARDS = 4, 40
JOBS = 16
IDLE = JobLoad(0.001, 0.0, 0.0, 0.03)
"""Sleepers do not slow each other down."""
BETWEEN_S = 0.8
"""From the end of a job to the start of the one that waited for it: within Slurm's next second."""
APART_S = 1.2
"""Ends that are closer than this come in either order: Slurm's clock ticks in seconds."""


class Seen(NamedTuple):
    start: float
    end: float
    gpu: int


Plan = Sequence[tuple[int, float]]
"""Shards and seconds of each job; 40 shards are a whole GPU."""


def _played(plan: Plan) -> Outcome:
    jobs = [
        SimJob(number, 0.0, seconds + BETWEEN_S, 1, shards * 1024, IDLE, user="a", limit=60.0,
               estimates={"text": shards * 1024})
        for number, (shards, seconds) in enumerate(plan)
    ]  # fmt: skip
    timing = SLURM_TIMING._replace(backfill_s=CYCLE_S)
    fleet = Fleet(1, GPUS, SHARDS * 1024)
    return simulate(jobs, Setup(fleet, POLICIES["slurm-pack"], "text", "mps", timing, record=True))


def _clear_plan(seed: int) -> Plan:
    """Jobs that end one after the other, so that their order does not hang on a fraction of a second."""
    rng = random.Random(seed)
    plan: List[tuple[int, float]] = []
    taken: Set[int] = set()
    for _ in range(JOBS):
        shards = rng.choice([8, 12, 16, 24, 30, 40])
        start = _played([*plan, (shards, 5.0)]).start[len(plan)]
        place = int((start + rng.uniform(3.0, 10.0)) / APART_S) + 1
        while place in taken:
            place += 1
        taken.add(place)
        plan.append((shards, place * APART_S - start - BETWEEN_S))
    return plan


def _run(cluster: Cluster, folder: Path, plan: Plan) -> List[Seen]:
    ids: List[str] = []
    for shards, seconds in plan:
        log = f"{folder}/$SLURM_JOB_ID"
        command = (
            f"echo $(date +%s.%N) $CUDA_VISIBLE_DEVICES > {log}; sleep {seconds:.2f}; date +%s.%N >> {log}"
        )
        options = (f"--gres=shard:{shards}", "--cpus-per-task=1", "--mem=1G", "--time=1", "--hold")
        ids.append(submit(cluster, *options, command=command))
    cluster.run(["scontrol", "release", ",".join(ids)], check=True)
    until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout, 120)
    found = []
    for job in ids:
        start, gpu, end = (folder / job).read_text().split()
        found.append(Seen(float(start), float(end), int(gpu)))
    return found


@pytest.mark.timing
@pytest.mark.slurm
def test_the_same_jobs_go_to_the_same_gpus_at_the_same_times_as_under_slurm(
    make_cluster: Callable[..., Cluster], state_folder: Path
) -> None:
    state_folder.chmod(0o777)
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=GPUS),))
    plan = _clear_plan(24)
    real = _run(cluster, state_folder, plan)
    played = _played(plan)
    gpus = {run.job: run.gpus[0] for run in played.runs}
    first = min(seen.start for seen in real)
    assert [gpus[number] for number in range(JOBS)] == [seen.gpu for seen in real]
    by_start = sorted(range(JOBS), key=lambda number: (round(real[number].start - first), number))
    assert [round(played.start[number]) for number in by_start] == sorted(map(round, played.start))
    for number, seen in enumerate(real):
        assert played.start[number] == pytest.approx(seen.start - first, abs=CYCLE_S)
    total = max(seen.end for seen in real) - first
    assert played.span - BETWEEN_S == pytest.approx(total, rel=0.05)
