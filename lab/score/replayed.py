"""Does the simulator say what was measured? `python -m lab.score.replayed`.

The queues that ran on an H200 under real Slurm (`lab/docs/rehearsal*`), played again by the simulator's
engine: the same jobs, shares, order and mean start-up; speeds are the package's prediction from each kind's
activity alone. Measured and simulated makespan, mean time to completion and median slowdown of training.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Dict, NamedTuple, Sequence, Tuple

from lab.rows import Row, read_rows
from lab.shared_speeds import usual_load
from lab.simulate.policies import find_policy
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob, Timing
from slurm_gpumem.site.queue_order import PATIENCE_S

DOCS = Path(__file__).parents[1] / "docs"
ONE = "one server"
RUNS = {
    "rehearsal/shared": ONE,
    "rehearsal/per-user": "mps",
    "rehearsal/timeslice": "timeslice",
    "rehearsal-limit/limit-shared": ONE,
    "rehearsal-limit/limit-shared-long": ONE,
    "rehearsal-limit/limit-per-user": "mps",
    "rehearsal-priorities/default": "mps-shared",
    "rehearsal-minute/default": "mps-shared",
    "rehearsal-claims/default": "mps-shared",
}
"""The first queues at one server had no priorities: as if all jobs were one user's."""
_GPU = Fleet(nodes=1, gpus_per_node=1, memory_mib=140 * 1024)
_SLURM_S = 0.7
"""From the end of a job to the first line of the next one's script, in these runs."""
_TIMING = Timing(recovery_s=8.0, backfill_s=2.0)
_LIMIT_S = 600.0
_MORE = (60,)
"""Percent more after running out of memory, as in these runs."""


class Figures(NamedTuple):
    """Of one queue; seconds."""

    makespan: float
    completion: float
    slowdown: float


def rates_of(folder: Path) -> Dict[str, Row]:
    """By kind of job: what it did alone."""
    return {row["kind"]: row for row in read_rows(folder / "solo.jsonl") if "kind" in row}


def measured(jobs: Sequence[Row], rates: Dict[str, Row]) -> Figures:
    """What happened, up to where the run was cut off."""
    ended = [job for job in jobs if "done" in job]
    slow = [(job["done"] - job["ready"]) * rates[job["kind"]]["steps_per_s"] / job["steps"] for job in ended]
    ends = [job["done"] for job in ended]
    return Figures(max(ends), fmean(ends), median(slow))


def played(jobs: Sequence[Row], rates: Dict[str, Row], mode: str) -> Figures:
    """The same queue, simulated; of jobs that the measured run did not end, nothing counts."""
    startup = fmean(job["ready"] - job["began"] for job in jobs if "ready" in job) + _SLURM_S
    trace = [_job(number, job, rates, startup) for number, job in enumerate(jobs)]
    if mode == ONE:
        mode, trace = "mps", [job._replace(user="") for job in trace]
    # Only in the runs with priorities did small shares go around large ones.
    timing = _TIMING._replace(reserve_after_s=float(PATIENCE_S)) if mode == "mps-shared" else _TIMING
    setup = Setup(_GPU, find_policy("slurm-pack"), "trace", mode, timing, _MORE)
    outcome = simulate(trace, setup)
    ended = [number for number, job in enumerate(jobs) if "done" in job]
    ends = [outcome.end[number] for number in ended]
    slow = [
        (outcome.end[number] - outcome.start[number] - startup) / (trace[number].work - startup)
        for number in ended
    ]
    return Figures(max(ends), fmean(ends), median(slow))


def _job(number: int, job: Row, rates: Dict[str, Row], startup: float) -> SimJob:
    solo, asked = rates[job["kind"]], job["shards"] * 1024
    short = bool(job.get("failed")) or ("began" in job and "ready" not in job)
    steps = job["trained"] if "cancelled" in job else job["steps"]
    return SimJob(
        number=number,
        arrival=0.0,
        work=startup + steps / solo["steps_per_s"],
        gpus=1,
        peak_mib=asked * 6 // 5 if short else asked,
        load=usual_load(solo["sm"], 1 / solo["steps_per_s"]),
        startup_s=startup,
        user=str(job["user"]),
        name=job["kind"],
        limit=_LIMIT_S,
        estimates={"trace": asked},
    )


def compare(run: str, mode: str) -> Tuple[Figures, Figures]:
    """Measured and simulated."""
    path = DOCS / f"{run}.jsonl"
    rates = rates_of(path.parent)
    jobs = sorted((row for row in read_rows(path) if "job" in row), key=lambda job: str(job["job"]))
    return measured(jobs, rates), played(jobs, rates, mode)


def main() -> int:
    """Print a line for each run."""
    print(f"{'run':<36}{'makespan, s':>20}{'mean completion, s':>22}{'median slowdown':>20}")
    for run, mode in RUNS.items():
        cells = "".join(
            f"{f'{was:.4g} / {said:.4g} ({100 * (said / was - 1):+.0f} %)':>22}"
            for was, said in zip(*compare(run, mode))
        )
        print(f"{run:<36}{cells}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
