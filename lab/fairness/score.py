"""Who waited how long: `python -m lab.fairness.score`.

Rows of `lab.fairness.run` (the dev cluster, real Slurm daemons), and the same jobs simulated: once with the
dev cluster's costs, to hold the simulator against it, and once with those of a site. Times are hours of the
trace.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.fairness.run import CRED_EXPIRE_S, PLACES
from lab.fairness.workload import LONG, SCALE, SECONDS_PER_HOUR, SHORT, STEP_S, WAYS, Way, trace
from lab.places import DATA
from lab.simulate.figures import figures
from lab.simulate.policies import find_policy
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import Fleet, Setup, Turns
from slurm_gpumem.simulation.what_if import SLURM_TIMING
from slurm_gpumem.utilization.interference import JobLoad

ROWS = DATA / "fairness" / "rows.jsonl"
REPEATS = DATA / "fairness" / "repeats.jsonl"
"""More runs of some ways, each with a name: only what was lost is taken from them."""
_IDLE = JobLoad(0.001, 0.0, 0.0, 0.03)
"""Jobs on the dev cluster do not slow each other down."""
_SAVE_S = 2.0
"""Before a slot's end, in which a job of the dev cluster saves."""
_BACKFILL_S = 5.0
"""The dev cluster's bf_interval."""
_GPU_MIB = 40 * 1024


class Fared(NamedTuple):
    """One way, in hours of the trace."""

    short_wait: float
    short_longest: float
    long_wait: float
    long_done: float
    """Mean time from submission to the end."""
    makespan: float
    lost: float
    """GPU hours that were lost: steps done twice on the cluster; saves, restarts and lost runs simulated."""


def measured(rows: Sequence[Dict[str, Any]]) -> Fared:
    """A wait is the time from submission to the end without the runs that the job went on from."""
    waits: Dict[str, List[float]] = {LONG: [], SHORT: []}
    ends: Dict[str, List[float]] = {LONG: [], SHORT: []}
    for row in rows:
        if row["different"] != row["steps"]:
            raise UsageError(f"{row['way']}: {row['job']} did {row['different']} of {row['steps']} steps")
        end = row["runs"][-1][1]
        # A run whose steps were lost counts as waiting, as in the simulator.
        counted = row["runs"] if row["done"] == row["steps"] else row["runs"][-1:]
        waits[row["user"]].append(end - sum(last - first for first, last in counted))
        ends[row["user"]].append(end)
    twice = sum(row["done"] - row["steps"] for row in rows)
    hours = [
        fmean(waits[SHORT]), max(waits[SHORT]), fmean(waits[LONG]), fmean(ends[LONG]), max(ends[LONG]),
        twice * STEP_S,
    ]  # fmt: skip
    return Fared(*(value / SECONDS_PER_HOUR for value in hours))


def read_rows(path: Path) -> Dict[str, List[Dict[str, Any]]]:
    """The rows of each way."""
    found: Dict[str, List[Dict[str, Any]]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        found.setdefault(row["way"], []).append(row)
    return found


def kept(rows: Sequence[Dict[str, Any]]) -> Tuple[int, int, int, int, int]:
    """Long jobs, their runs, those that ended in their first run; steps, and those done again."""
    runs = [len(row["runs"]) for row in rows if row["user"] == LONG]
    steps = sum(row["steps"] for row in rows)
    return len(runs), sum(runs), runs.count(1), steps, sum(row["done"] for row in rows) - steps


def gap_s(rows: Sequence[Dict[str, Any]]) -> float:
    """Seconds from one run on a GPU to the next, while there was work for all of them."""
    runs = [run for row in rows if row["user"] == LONG for run in row["runs"]]
    until = sorted(end for _, end in runs)[int(0.7 * len(runs))]
    begun = [(start, min(end, until)) for start, end in runs if start < until]
    busy: float = sum(end - start for start, end in begun)
    return float(PLACES * until - busy) / len(begun)


def simulated(way: Way, gap: Optional[float] = None) -> Fared:
    """The same jobs on as many places, with a site's costs; with those of the dev cluster where `gap` is its
    time between two runs."""
    jobs, turns, timing = trace(way), way.turns, SLURM_TIMING
    if way.shares:
        jobs = [job._replace(peak_mib=_GPU_MIB // 2) for job in jobs]
    if gap is not None:
        # There a slot begins with the program, here with the job.
        slot_s = turns.slot_s + gap / SCALE if turns.slot_s else 0.0
        jobs = [job._replace(load=_IDLE, work=job.work + gap / SCALE) for job in jobs]
        turns = Turns(slot_s, _SAVE_S / SCALE, gap / SCALE, turns.preempt, turns.grace_s / SCALE)
        timing = timing._replace(recovery_s=(CRED_EXPIRE_S + 1) / SCALE, backfill_s=_BACKFILL_S / SCALE)
    fleet = Fleet(2, PLACES // (4 if way.shares else 2), _GPU_MIB)
    policy = find_policy("slurm-pack" if way.shares else "slurm")
    mode = "mps" if way.shares else "exclusive"
    found = figures(simulate(jobs, Setup(fleet, policy, mode=mode, timing=timing, turns=turns)))
    users = {user.user: user for user in found.users}
    short, long = users[SHORT], users[LONG]
    seconds = (short.waiting, short.longest, long.waiting, long.completion, found.makespan_s)
    return Fared(*(value / 3600 for value in (*seconds, found.lost_gpu_hours * 3600)))


def main() -> int:
    """Print a table for the cluster, beside the simulator, and one with a site's costs."""
    parser = argparse.ArgumentParser(prog="python -m lab.fairness.score", description=__doc__)
    parser.add_argument("--rows", type=Path, default=ROWS)
    args = parser.parse_args()
    by_way = read_rows(args.rows)
    print("Dev cluster (simulated with its costs), hours of the trace")
    _head("steps lost", "s between runs")
    for name, way in WAYS.items():
        if name in by_way:
            gap = gap_s(by_way[name])
            both = zip(measured(by_way[name])[:5], simulated(way, gap))
            cells = [f"{real:.1f} ({twin:.1f})" for real, twin in both]
            lost = sum(row["done"] - row["steps"] for row in by_way[name])
            _line(way.what, [*cells, str(lost), f"{gap:.0f}"])
    print("\nLong jobs that save, and what of their steps was lost")
    _line("", ["jobs", "runs", "in one run", "steps", "done again"])
    saved = {name: rows for name, rows in by_way.items() if WAYS[name].slot_h}
    for name, rows in {**saved, **read_rows(REPEATS)}.items():
        _line(name, [str(value) for value in kept(rows)])
    print("\nSimulated with a site's costs: 30 s to save, 60 s to begin again, 121 s until a requeue is over")
    _head("GPU h lost")
    for way in WAYS.values():
        _line(way.what, [f"{value:.1f}" for value in simulated(way)])
    return 0


def _head(*last: str) -> None:
    _line("", ["short: wait", "longest", "long: wait", "until done", "all done", *last])


def _line(what: str, cells: Sequence[str]) -> None:
    print(f"{what:<40}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
