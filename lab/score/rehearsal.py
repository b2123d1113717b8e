"""The rehearsal of real jobs on a real GPU, played again with predicted speeds.

    python -m lab.score.rehearsal

Rows of `tests/gpu/rehearsal.py` (lab/docs/rehearsal): eight training jobs of two users on an H200 under
real Slurm, once in each way of sharing. A job begins to train when it did then; its steps take as long as
alone (measured), stretched by what the model says of the jobs that train beside it. Printed is the time with
any job training and the mean training time of a job, measured and predicted. Only SM activity and steps were
measured of each job alone; occupancy and DRAM activity are taken for usual.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.places import REHEARSAL
from lab.shared_speeds import predicted_speeds, usual_load
from slurm_gpumem.errors import UsageError
from slurm_gpumem.utilization.interference import JobLoad
from slurm_gpumem.utilization.sets import EQUAL, SHARED, WAYS


class RehearsalJob(NamedTuple):
    """A job of the rehearsal: when it trained, and how long its steps take alone."""

    user: str
    ready: float
    done: float
    work: float
    load: JobLoad


class Totals(NamedTuple):
    """Seconds."""

    with_a_job: float
    """With any job training."""
    of_a_job: float
    """Mean training time."""


def read_rehearsal(way: str, folder: Path = REHEARSAL) -> List[RehearsalJob]:
    """The jobs that one way of sharing ran."""
    try:
        alone = {row["kind"]: row for row in _rows(folder / "solo.jsonl") if "kind" in row}
        jobs = []
        for row in _rows(folder / f"{way}.jsonl"):
            if "job" in row and row.get("done") is not None:
                solo = alone[row["kind"]]
                load = usual_load(solo["sm"], 1 / solo["steps_per_s"])
                work = row["steps"] / solo["steps_per_s"]
                jobs.append(RehearsalJob(str(row["user"]), row["ready"], row["done"], work, load))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UsageError(f"{folder}: no rehearsal of {way}: {error!r}") from None
    return jobs


def predicted_ends(jobs: Sequence[RehearsalJob], way: str) -> List[float]:
    """When each job would have ended, by predicted speeds."""
    left = [job.work for job in jobs]
    ends = [0.0] * len(jobs)
    now, waiting = 0.0, sorted(range(len(jobs)), key=lambda place: jobs[place].ready)
    training: List[int] = []
    while waiting or training:
        loads, users = [jobs[place].load for place in training], [jobs[place].user for place in training]
        rates = predicted_speeds(EQUAL if way == SHARED else way, loads, users)
        until = min([now + left[place] / rate for place, rate in zip(training, rates)], default=float("inf"))
        until = min(until, jobs[waiting[0]].ready if waiting else float("inf"))
        for place, rate in zip(training, rates):
            left[place] -= (until - now) * rate
        now = until
        for place in [place for place in training if left[place] <= 1e-9]:
            training.remove(place)
            ends[place] = now
        while waiting and jobs[waiting[0]].ready <= now:
            training.append(waiting.pop(0))
    return ends


def totals(jobs: Sequence[RehearsalJob], ends: Sequence[float]) -> Totals:
    """Over jobs that end at these times."""
    spans = sorted((job.ready, end) for job, end in zip(jobs, ends))
    covered, reached = 0.0, 0.0
    for begin, end in spans:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return Totals(covered, sum(end - begin for begin, end in spans) / len(spans))


def compared(way: str) -> Tuple[Totals, Totals]:
    """Measured and predicted."""
    jobs = read_rehearsal(way)
    return totals(jobs, [job.done for job in jobs]), totals(jobs, predicted_ends(jobs, way))


def main(argv: Optional[List[str]] = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    return exit_code(_print)


def _print() -> int:
    print(
        f"{'seconds':<12} with a job training: measured  predicted   training of a job: measured  predicted"
    )
    for way in WAYS:
        real, said = compared(way)
        print(
            f"{way:<12} {real.with_a_job:>29.1f}  {said.with_a_job:>9.1f}   "
            f"{real.of_a_job:>27.1f}  {said.of_a_job:>9.1f}"
        )
    return 0


def _rows(path: Path) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
