"""The researcher's part of the page: what to do next, one's sweeps, and what sharing cost and gained.

Gathered in one pass beside the charts, in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import SHARED, JobRow, JobTotals
from slurm_gpumem.report.advice import advice
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import duration, hours, percent, short_mib

_MOST_KINDS, _MOST_SWEEPS, _MOST_RUNS, _MOST_TASKS = 200, 50, 1_000, 10_000
_SHOWN = 12
_ENOUGH_RUNS = 2
"""Runs of the same kind, alone and beside others, before their times are compared."""
_Kind = Tuple[str, str, Optional[int], str, str, str]


class Advised(NamedTuple):
    """What to do with one kind of job."""

    what: str
    jobs: str
    said: str


class SweepBlock(NamedTuple):
    """An array as one block."""

    name: str
    what: str
    states: str
    spreads: Tuple[Tuple[str, str], ...]
    """(figure, from the least to the most)."""


class Personal(NamedTuple):
    """What is shown."""

    gained: Tuple[str, ...]
    cost: Tuple[str, ...]
    advised: Tuple[Advised, ...]
    sweeps: Tuple[SweepBlock, ...]


@dataclass
class _Runs:
    """All jobs of one kind: the same model, batch, optimizer and precision on the same GPU type."""

    jobs: int = 0
    last: Optional[JobRow] = None
    alone_s: List[float] = field(default_factory=list)
    beside_s: List[float] = field(default_factory=list)


@dataclass
class PersonalFigures:
    """Fed with rows, oldest end first."""

    shard_mib: int
    _kinds: Dict[_Kind, _Runs] = field(default_factory=dict)
    _sweeps: Dict[Tuple[str, int], List[JobRow]] = field(default_factory=dict)
    _lost_s: float = 0.0
    _met: int = 0
    _waits: Dict[bool, List[float]] = field(default_factory=lambda: {True: [], False: []})

    def add(self, row: JobRow) -> None:
        """One more job."""
        kind = (row.model or row.job_name, row.fingerprint, row.batch, row.optimizer, row.precision, row.gpu)
        runs = self._kinds.get(kind)
        if runs is None and len(self._kinds) < _MOST_KINDS:
            runs = self._kinds.setdefault(kind, _Runs())
        if runs is not None:
            runs.jobs += 1
            runs.last = row if row.peak_mib and row.end is not None else runs.last
            if row.state == "COMPLETED" and row.run_s and row.attempts == 1:
                times = runs.beside_s if row.companions else runs.alone_s
                if len(times) < _MOST_RUNS:
                    times.append(row.run_s)
        self._met += bool(row.companions)
        if row.ooms and row.run_s:
            self._lost_s += row.run_s * min(1.0, row.ooms / max(1, row.attempts))
        if row.wait_s is not None:
            waits = self._waits[row.sharing == SHARED]
            if len(waits) < _MOST_TASKS:
                waits.append(row.wait_s)
        if row.array_job is not None:
            key = (row.cluster, row.array_job)
            if key not in self._sweeps and len(self._sweeps) >= _MOST_SWEEPS:
                # The latest are the ones somebody looks for.
                del self._sweeps[next(iter(self._sweeps))]
            tasks = self._sweeps.setdefault(key, [])
            if len(tasks) < _MOST_TASKS:
                tasks.append(row)

    def result(self, total: JobTotals) -> Personal:
        """What came of it."""
        return Personal(
            gained=tuple(self._gained(total)),
            cost=tuple(self._cost(total)),
            advised=tuple(self._advised()),
            sweeps=tuple(_block(tasks) for tasks in reversed(self._sweeps.values()) if len(tasks) > 1),
        )

    def _gained(self, total: JobTotals) -> List[str]:
        said = []
        if total.shared and total.gpu_s and total.used_s is not None and total.used_s < total.gpu_s:
            said.append(
                f"{hours(total.gpu_s - total.used_s)} GPU-hours left for others and for your next jobs: "
                f"{hours(total.used_s)} instead of {hours(total.gpu_s)} with a GPU for each job"
            )
        shared, whole = self._waits[True], self._waits[False]
        if len(shared) >= _ENOUGH_RUNS and len(whole) >= _ENOUGH_RUNS:
            said.append(
                f"jobs that share waited {duration(median(shared))} in the queue, jobs with a whole GPU "
                f"{duration(median(whole))} (medians of {len(shared)} and {len(whole)})"
            )
        if total.oom_recovered:
            said.append(f"{count(total.oom_recovered, 'job')} that ran out of memory came back and finished")
        return said

    def _cost(self, total: JobTotals) -> List[str]:
        said = []
        for kind, runs in self._kinds.items():
            if len(runs.alone_s) >= _ENOUGH_RUNS and len(runs.beside_s) >= _ENOUGH_RUNS:
                factor = median(runs.beside_s) / median(runs.alone_s)
                said.append(
                    f"{_title(kind)}: beside others it took {factor:.2f} times as long as alone "
                    f"(medians of {len(runs.beside_s)} and {len(runs.alone_s)} runs; it counts only if they "
                    "trained for as many steps)"
                )
        if self._met and not said:
            said.append(
                f"{count(self._met, 'job')} met others; how much longer they took is not known: no kind of "
                f"job ran {_ENOUGH_RUNS} times alone and {_ENOUGH_RUNS} times beside others"
            )
        if total.ooms:
            lost = f", {hours(self._lost_s)} GPU-hours in all" if self._lost_s else ""
            said.append(
                f"{count(total.ooms, 'run')} ran out of memory{lost}; {total.oom_lost:,} lost for good"
            )
        return said or ["nothing that was measured: no job met another, none ran out of memory"]

    def _advised(self) -> List[Advised]:
        found = []
        for kind, runs in sorted(self._kinds.items(), key=lambda item: -item[1].jobs):
            said = advice(runs.last, self.shard_mib) if runs.last is not None else ""
            if said and runs.last is not None:
                found.append(Advised(_title(kind), f"{count(runs.jobs, 'job')}, last {runs.last.name}", said))
        return found[:_SHOWN]


def _title(kind: _Kind) -> str:
    name, _, batch, optimizer, precision, gpu = kind
    words = [name or "jobs without a name", f"batch {batch}" if batch else "", optimizer, precision, gpu]
    return clipped(", ".join(filter(None, words)), 120)


def _block(tasks: List[JobRow]) -> SweepBlock:
    first = tasks[0]
    states = Counter(task.state for task in tasks)
    spreads = (
        ("peak", _spread([task.peak_mib for task in tasks], short_mib)),
        ("ran", _spread([task.run_s for task in tasks], duration)),
        ("waited", _spread([task.wait_s for task in tasks], duration)),
        ("error", _spread([task.shown_error for task in tasks], lambda part: percent(part, sign=True))),
        ("SM", _spread([task.sm_share for task in tasks], percent)),
    )
    return SweepBlock(
        f"{first.array_job} ({count(len(tasks), 'task')})",
        clipped(first.model or first.job_name, 64),
        ", ".join(f"{number:,} {clipped(state, 24)}" for state, number in states.most_common()),
        tuple((name, text) for name, text in spreads if text),
    )


def _spread(values: Sequence[Optional[float]], write: Callable[[Optional[float]], str]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, middle, high = write(known[0]), write(median(known)), write(known[-1])
    return low if low == high else f"{low} to {high}, median {middle}"
