"""The simulator against real Slurm daemons: waiting jobs with shards, the same in both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Sequence, Set

import pytest

from lab.simulate.policies import POLICIES
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.simulation.engine import Outcome, simulate
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob
from slurm_gpumem.simulation.what_if import SLURM_TIMING
from slurm_gpumem.utilization.interference import JobLoad
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

CYCLE_S = 5.0
"""The dev cluster's bf_interval."""
GPUS, SHARDS = 4, 40
JOBS = 16
IDLE = JobLoad(0.001, 0.0, 0.0, 0.03)
"""Jobs that only wait do not slow each other down."""
LIMIT_S = 3600.0
APART_S = 4 * CYCLE_S
"""Simulated time from one end to the next: all that can start has started by then."""


class Planned(NamedTuple):
    shards: int
    seconds: float


Plan = Sequence[Planned]
GpuOfJob = Dict[int, int]


class Step(NamedTuple):
    """A job ends, and then these run."""

    ended: int
    running: GpuOfJob


def _played(plan: Plan) -> Outcome:
    jobs = [
        SimJob(number, 0.0, job.seconds, 1, job.shards * 1024, IDLE, user="a", limit=LIMIT_S,
               estimates={"text": job.shards * 1024})
        for number, job in enumerate(plan)
    ]  # fmt: skip
    timing = SLURM_TIMING._replace(backfill_s=CYCLE_S)
    fleet = Fleet(1, GPUS, SHARDS * 1024)
    return simulate(jobs, Setup(fleet, POLICIES["slurm-pack"], "text", "mps", timing, record=True))


def _plan(seed: int) -> Plan:
    """Jobs that end one at a time."""
    rng = random.Random(seed)
    plan: List[Planned] = []
    taken: Set[int] = set()
    for _ in range(JOBS):
        shards = rng.choice([8, 12, 16, 24, 30, 40])
        start = _played([*plan, Planned(shards, APART_S)]).start[len(plan)]
        place = int(start / APART_S) + rng.randint(1, 5)
        while place in taken:
            place += 1
        taken.add(place)
        plan.append(Planned(shards, place * APART_S - start))
    return plan


def _steps(outcome: Outcome) -> List[Step]:
    """What runs at the start (no job has ended: -1) and after each end."""

    def running(after: float) -> GpuOfJob:
        moment = after + APART_S * 0.9
        return {run.job: run.gpus[0] for run in outcome.runs if run.start <= moment < run.end}

    ends = sorted((run.end, run.job) for run in outcome.runs)
    return [Step(-1, running(0.0)), *(Step(job, running(end)) for end, job in ends)]


def _submit_all(cluster: Cluster, folder: Path, plan: Plan) -> List[Path]:
    """The jobs, released at one moment: each writes its GPU to its file and waits for a second file there."""
    cluster.run(["scontrol", "update", "partition=gpu", "state=DOWN"], check=True)
    files = [folder / str(number) for number in range(len(plan))]
    for file, job in zip(files, plan):
        command = (
            f"echo $CUDA_VISIBLE_DEVICES > {file}; until [ -e {file}.end ]; do sleep 0.1; done; rm {file}"
        )
        options = (f"--gres=shard:{job.shards}", "--cpus-per-task=1", "--mem=1G", f"--time={LIMIT_S / 60:g}")
        submit(cluster, *options, command=command)
    cluster.run(["scontrol", "update", "partition=gpu", "state=UP"], check=True)
    return files


def _seen(files: Sequence[Path]) -> GpuOfJob:
    """The GPUs of the jobs that have started and not been ended."""
    found = {}
    for number, file in enumerate(files):
        if file.exists() and not file.with_suffix(".end").exists():
            found[number] = file.read_text().strip()
    return {number: int(gpu) for number, gpu in found.items() if gpu}


def _wait_for(step: Step, files: Sequence[Path]) -> None:
    until(
        lambda: _seen(files) == step.running,
        but=lambda: f"after the end of {step.ended}: {step.running}, but {_seen(files)}",
    )


@pytest.mark.slurm
@pytest.mark.parametrize("seed", [1, 24])
def test_the_same_jobs_start_on_the_same_gpus_after_each_end_as_under_slurm(
    make_cluster: Callable[..., Cluster], state_folder: Path, seed: int
) -> None:
    state_folder.chmod(0o777)
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=GPUS),))
    plan = _plan(seed)
    files = _submit_all(cluster, state_folder, plan)
    for step in _steps(_played(plan)):
        if step.ended >= 0:
            files[step.ended].with_suffix(".end").touch()
        _wait_for(step, files)
