"""Who waited how long: `python -m lab.fairness.score`.

Rows of a dev cluster of real Slurm daemons (made by code of the history: lab/data/README.md), and the same
jobs simulated: once with the dev cluster's costs, to hold the simulator against it, and once with those of a
site. Times are hours of the trace.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.places import DATA, SIMULATION
from lab.rows import Row, read_rows
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.figures import figures
from slurm_gpumem.simulation.policies import SLURM_TIMING, find_policy
from slurm_gpumem.simulation.trace_file import read_trace
from slurm_gpumem.simulation.types import Fleet, Setup, SimJob, Turns
from slurm_gpumem.utilization.interference import JobLoad

ROWS = DATA / "fairness" / "rows.jsonl"
REPEATS = DATA / "fairness" / "repeats.jsonl"
"""More runs of some ways, each with a name: only what was lost is taken from them."""
LONG, SHORT = "a", "b"
PLACES = 16
SECONDS_PER_HOUR = 6
"""Of the dev cluster's time for an hour of the trace."""
SCALE = SECONDS_PER_HOUR / 3600
STEP_S = 0.5
_CRED_EXPIRE_S = 5
"""Slurm's 120 s would be 20 hours of the trace."""
_IDLE = JobLoad(0.001, 0.0, 0.0, 0.03)
"""Jobs on the dev cluster do not slow each other down."""
_SAVE_S = 2.0
"""Before a slot's end, in which a job of the dev cluster saves."""
_BACKFILL_S = 5.0
"""The dev cluster's bf_interval."""
_GPU_MIB = 40 * 1024


class Way(NamedTuple):
    """One way to run the jobs (lab/docs/fairness.md has its lines of slurm.conf)."""

    what: str
    slot_h: int = 0
    """Of the long jobs, in hours of the trace; 0: they know no slots and save nothing."""
    shares: bool = False
    """Two jobs on a GPU, on half as many GPUs."""
    urgent: bool = False
    """The short jobs go first ..."""
    preempt: bool = False
    """... and take running jobs' places."""

    @property
    def turns(self) -> Turns:
        """For the simulator, in the trace's time; a job that saves has the time for it."""
        return Turns(3600.0 * self.slot_h, preempt=self.preempt, grace_s=60.0 if self.slot_h else 0.0)

    def trace(self) -> List[SimJob]:
        """The jobs; the short ones with a higher priority where they go first."""
        jobs = read_trace(SIMULATION / "two-users.csv")
        return [job._replace(priority=1 if self.urgent and job.user == SHORT else 0) for job in jobs]


WAYS: Dict[str, Way] = {
    "age": Way("whole GPUs, first come, first served"),
    "age-slots": Way("the same, slots of 2 h", 2),
    "shares": Way("shares, first come, first served", shares=True),
    "shares-slots": Way("the same, slots of 2 h", 2, shares=True),
    "first": Way("short jobs first", urgent=True),
    "first-slots": Way("the same, slots of 2 h", 2, urgent=True),
    "preempt": Way("short jobs preempt, no checkpoint", urgent=True, preempt=True),
    # A slot of 24 hours that no job fills: it saves when it is preempted.
    "preempt-saves": Way("the same, checkpoint", 24, urgent=True, preempt=True),
}


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


def measured(rows: Sequence[Row]) -> Fared:
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


def by_way(path: Path) -> Dict[str, List[Row]]:
    """The rows of each way."""
    found: Dict[str, List[Row]] = {}
    for row in read_rows(path):
        found.setdefault(row["way"], []).append(row)
    return found


def kept(rows: Sequence[Row]) -> Tuple[int, int, int, int, int]:
    """Long jobs, their runs, those that ended in their first run; steps, and those done again."""
    runs = [len(row["runs"]) for row in rows if row["user"] == LONG]
    steps = sum(row["steps"] for row in rows)
    return len(runs), sum(runs), runs.count(1), steps, sum(row["done"] for row in rows) - steps


def gap_s(rows: Sequence[Row]) -> float:
    """Seconds from one run on a GPU to the next, while there was work for all of them."""
    runs = [run for row in rows if row["user"] == LONG for run in row["runs"]]
    until = sorted(end for _, end in runs)[int(0.7 * len(runs))]
    begun = [(start, min(end, until)) for start, end in runs if start < until]
    busy: float = sum(end - start for start, end in begun)
    return float(PLACES * until - busy) / len(begun)


def simulated(way: Way, gap: Optional[float] = None) -> Fared:
    """The same jobs on as many places, with a site's costs; with those of the dev cluster where `gap` is its
    time between two runs."""
    jobs, turns, timing = way.trace(), way.turns, SLURM_TIMING
    if way.shares:
        jobs = [job._replace(peak_mib=_GPU_MIB // 2) for job in jobs]
    if gap is not None:
        # There a slot begins with the program, here with the job.
        slot_s = turns.slot_s + gap / SCALE if turns.slot_s else 0.0
        jobs = [job._replace(load=_IDLE, work=job.work + gap / SCALE) for job in jobs]
        turns = Turns(slot_s, _SAVE_S / SCALE, gap / SCALE, turns.preempt, turns.grace_s / SCALE)
        timing = timing._replace(recovery_s=(_CRED_EXPIRE_S + 1) / SCALE, backfill_s=_BACKFILL_S / SCALE)
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
    ran = by_way(ROWS)
    print("Dev cluster (simulated with its costs), hours of the trace")
    _head("steps lost", "s between runs")
    for name, way in WAYS.items():
        if name in ran:
            gap = gap_s(ran[name])
            both = zip(measured(ran[name])[:5], simulated(way, gap))
            cells = [f"{real:.1f} ({twin:.1f})" for real, twin in both]
            lost = sum(row["done"] - row["steps"] for row in ran[name])
            _line(way.what, [*cells, str(lost), f"{gap:.0f}"])
    print("\nLong jobs that save, and what of their steps was lost")
    _line("", ["jobs", "runs", "in one run", "steps", "done again"])
    saved = {name: rows for name, rows in ran.items() if WAYS[name].slot_h}
    for name, rows in {**saved, **by_way(REPEATS)}.items():
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
