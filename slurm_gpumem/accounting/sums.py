"""Summaries from the index: sums over its rows, medians off sorted indexes."""

from __future__ import annotations

import sqlite3
import time
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.schema import (
    COMPLETED_WORD,
    FAILED_WORD,
    OBSERVED_WORD,
    REMEMBERED_WORD,
    RUNNING_WORD,
    SHARED_WORD,
)
from slurm_gpumem.accounting.types import Filters, JobTotals, Waster

_RUN = "(end - start) * gpus"
_GRANTED = "CASE WHEN shards > 0 THEN limit_mib ELSE gpu_mib END"
_WASTE = f"max(0, {_GRANTED} - own_peak_mib) * {_RUN}"

_FAILED = f"(oom OR state = {FAILED_WORD})"
_CPUS_KNOWN = "cpus IS NOT NULL AND cpus_mean IS NOT NULL"

_RUN_NUMBER = "job_id * 1000 + restarts"
"""A run on several nodes has a row for each, and counts once."""

_WORK = f"end IS NOT NULL AND NOT redone AND NOT {_FAILED}"
"""Runs that exclusive use would have had, too: their time can be compared."""

_FACTS: Tuple[Tuple[str, str], ...] = (
    ("jobs", "sum(head)"),
    ("estimated", "count(error_pm)"),
    ("under_estimate", "sum(head AND (ooms > 0 OR (judged AND peak_mib > estimate_mib)))"),
    ("under_request", "sum(head AND (ooms > 0 OR (judged AND peak_mib > request_mib)))"),
    ("remembered", f"sum(head AND estimator = {REMEMBERED_WORD})"),
    ("shared", f"sum(head AND sharing = {SHARED_WORD})"),
    ("observed", f"sum(head AND sharing = {OBSERVED_WORD})"),
    ("gpu_s", f"sum({_RUN})"),
    ("used_s", "sum(used_s)"),
    ("alone_s", f"sum(CASE WHEN {_WORK} THEN alone_s END)"),
    ("alone_used_s", f"sum(CASE WHEN {_WORK} AND alone_s IS NOT NULL THEN used_s END)"),
    ("alone_run_s", f"sum(CASE WHEN {_WORK} AND alone_s IS NOT NULL THEN {_RUN} END)"),
    ("alone_unknown", f"sum({_WORK} AND alone_s IS NULL)"),
    ("alone_seen", f"sum({_WORK} AND alone_s IS NOT NULL AND guessed = 0)"),
    ("alone_guessed", f"sum({_WORK} AND alone_s IS NOT NULL AND guessed = 1)"),
    ("redone", f"count(DISTINCT CASE WHEN redone THEN {_RUN_NUMBER} END)"),
    ("redone_s", "sum(CASE WHEN redone THEN used_s END)"),
    (
        "failed_runs",
        f"count(DISTINCT CASE WHEN end IS NOT NULL AND NOT redone AND {_FAILED} THEN {_RUN_NUMBER} END)",
    ),
    ("failed_s", f"sum(CASE WHEN NOT redone AND {_FAILED} THEN used_s END)"),
    ("strangers", "sum(strangers)"),
    ("would_s", "sum(would_s)"),
    ("would_of_s", f"sum(CASE WHEN would_s IS NOT NULL THEN {_RUN} END)"),
    ("ooms", "sum(head * ooms)"),
    ("oom_recovered", f"sum(head AND ooms > 0 AND state = {COMPLETED_WORD})"),
    ("oom_lost", f"sum(head AND ooms > 0 AND state NOT IN ({COMPLETED_WORD}, {RUNNING_WORD}))"),
    (
        "oom_avoided",
        f"sum(judged AND ooms = 0 AND sharing = {SHARED_WORD} AND peak_mib > estimate_mib "
        "AND peak_mib <= limit_mib)",
    ),
    ("failed", f"sum(head AND state = {FAILED_WORD})"),
    ("energy_j", "sum(energy_j)"),
    ("idle_energy_j", "sum(idle_energy_j)"),
    ("idle_s", "sum(idle_s)"),
    ("idle_jobs", "sum(head AND instr(hints, 'idle') > 0)"),
    ("idle_ended", "sum(head AND instr(hints, 'idle-ended') > 0)"),
    ("unmeasured", "sum(head AND sm_share IS NULL)"),
    ("cpu_held_s", f"sum(CASE WHEN {_CPUS_KNOWN} THEN cpus * (end - start) END)"),
    ("cpu_used_s", f"sum(CASE WHEN {_CPUS_KNOWN} THEN cpus_mean * (end - start) END)"),
    ("energy_jobs", "sum(head AND energy_j IS NOT NULL)"),
    ("granted_mib_s", f"sum(CASE WHEN own_peak_mib IS NOT NULL THEN ({_GRANTED}) * {_RUN} END)"),
    ("wasted_mib_s", f"sum({_WASTE})"),
    ("wait_s", "sum(wait_s)"),
    ("wait_jobs", "count(wait_s)"),
    ("sm_s", f"sum(sm_share * {_RUN})"),
    ("sm_gpu_s", f"sum(CASE WHEN sm_share IS NOT NULL THEN {_RUN} END)"),
    ("sm_used_s", "sum(CASE WHEN sm_share IS NOT NULL THEN used_s END)"),
)
"""(name, aggregate). Running jobs have no end, and so add nothing to sums over time."""

_WORST_SQL = f"max({_WASTE})"
"""The worst single job; beside a lone max() SQLite gives the job_id of the same row."""

_SUMS = tuple(name for name, _ in _FACTS)
_WORST = len(_SUMS)
_INTEGERS = frozenset((
    "jobs", "estimated", "under_estimate", "under_request", "remembered", "shared", "observed", "ooms",
    "oom_recovered", "oom_lost", "oom_avoided", "failed", "energy_jobs", "wait_jobs",
    "idle_jobs", "idle_ended", "unmeasured",
    "strangers", "alone_unknown", "alone_seen", "alone_guessed", "redone", "failed_runs",
))  # fmt: skip
_SPLIT = ("used_s", "sm_used_s", "alone_used_s", "redone_s", "failed_s")
"""Follow from how a GPU's time is split, which one user's records do not tell."""
_NAME_FILTERS = (("users", "user"), ("accounts", "account"), ("partitions", "partition"), ("models", "model"))

_LATEST = 2000
"""Jobs by which estimates are judged: older ones tell of libraries and settings that are gone."""

Where = Tuple[str, List[Any]]


class Offset(NamedTuple):
    """How far estimates are from what the latest jobs took on a type of GPU."""

    gpu: str
    part: float
    """Measured less estimated, as a part of the estimate: the median over models of each one's median."""
    models: int
    jobs: int


class Sums:
    """Answers about many jobs."""

    def __init__(self, connection: sqlite3.Connection, texts: Mapping[int, str]) -> None:
        self._db = connection
        self._texts = texts
        self._taken: Dict[Tuple[str, Filters, int], Dict[int, List[Any]]] = {}

    def summary(self, filters: Filters) -> JobTotals:
        """Sums over all jobs of the filters."""
        found = self._by(None, filters)
        return found[0] if found else JobTotals("")

    def summary_by(self, group: str, filters: Filters) -> List[JobTotals]:
        """Sums for every value of a dimension, the most GPU time first; days in order."""
        found = self._by(group, filters)
        found.sort(
            key=(lambda one: one.group)
            if group == "day"
            else (lambda one: (-(one.gpu_s if one.used_s is None else one.used_s), -one.jobs, one.group))
        )
        return found

    def wasters(self, filters: Filters, limit: int) -> Tuple[Waster, ...]:
        """The users who kept the most memory × time from others without using it."""
        found = [
            Waster(
                self._name("user", key),
                int(sums[0]),
                sums[_SUMS.index("granted_mib_s")],
                sums[_SUMS.index("wasted_mib_s")],
                sums[-1],
            )
            for key, sums in self._sums("user", filters).items()
        ]
        found = [waster for waster in found if waster.wasted_mib_s > 0]
        return tuple(sorted(found, key=lambda waster: -waster.wasted_mib_s)[:limit])

    def offsets(self) -> List[Offset]:
        """By GPU type, of the latest jobs whose estimate was computed, not remembered or given."""
        rows = self._db.execute(
            "SELECT gpu, model, peak_mib, estimate_mib FROM job WHERE judged = 1 AND estimate_mib > 0 "
            "AND estimator NOT IN (SELECT id FROM word WHERE text IN ('', 'mem', 'remembered')) "
            "ORDER BY start DESC LIMIT ?",
            (_LATEST,),
        )
        by_gpu: Dict[int, Dict[int, List[float]]] = {}
        for gpu, model, peak, estimate in rows:
            by_gpu.setdefault(gpu, {}).setdefault(model, []).append(peak / estimate - 1)
        return [
            Offset(self._texts[gpu], median(map(median, models.values())), len(models), _count(models))
            for gpu, models in by_gpu.items()
        ]

    def _by(self, group: Optional[str], filters: Filters) -> List[JobTotals]:
        errors = self._errors(group, filters)
        found = []
        for key, sums in self._sums(group, filters).items():
            values: Dict[str, Any] = {
                name: int(value) if name in _INTEGERS else value for name, value in zip(_SUMS, sums)
            }
            if values["strangers"]:
                values.update(dict.fromkeys(_SPLIT))
            values["peak_mib_s"] = values["granted_mib_s"] - values.pop("wasted_mib_s")
            median, p95 = percentiles(errors.get(key, ()), (0.5, 0.95))
            found.append(JobTotals(self._name(group, key), median_error=median, p95_error=p95, **values))
        return found

    def _sums(self, group: Optional[str], filters: Filters) -> Dict[int, List[Any]]:
        """Value of the dimension → sums, in the order of _FACTS, then the worst waste and its job."""
        if group is None:
            # Of the users' sums, which a report wants anyway for its wasters.
            users = list(self._sums("user", filters).values())
            return {0: _total(users)} if users else {}
        key = (group, filters, self._db.total_changes)
        if key not in self._taken:
            self._taken[key] = self._read_sums(group, filters)
        return self._taken[key]

    def _read_sums(self, group: str, filters: Filters) -> Dict[int, List[Any]]:
        column = f'"{group}"'
        where, values = self.where(filters)
        rows = self._db.execute(
            f"SELECT {column}, {_sums_of_jobs()} FROM job WHERE {where} GROUP BY 1", values
        )
        return {key: sums for key, *sums in rows if sums[0] or sums[_SUMS.index("gpu_s")]}

    def _errors(self, group: Optional[str], filters: Filters) -> Dict[int, List[Tuple[int, int]]]:
        """Value of the dimension → (|error| in thousandths, jobs), errors in order."""
        # Without a group the index of the dimension with the fewest values serves as well.
        column = f'"{group or "gpu"}"'
        values: List[Any] = []
        if filters == Filters():
            source = f"job INDEXED BY error_{group or 'gpu'} WHERE judged = 1"
        else:
            condition, values = self.where(filters)
            source = f"job WHERE {condition} AND judged = 1"
        rows = self._db.execute(f"SELECT {column}, error_pm, count(*) FROM {source} GROUP BY 1, 2", values)
        found: Dict[int, Dict[int, int]] = {}
        for key, error, count in rows:
            if error is not None:
                counts = found.setdefault(key if group else 0, {})
                counts[error] = counts.get(error, 0) + count
        return {key: sorted(counts.items()) for key, counts in found.items()}

    def where(self, filters: Filters) -> Where:
        """The condition on rows of `job`."""
        condition, values = self._names(filters)
        parts = [condition]
        if filters.states:
            parts.append(f"state IN ({self._among(filters.states, values)})")
        if filters.nodes:
            # All rows of a job that was there: its head may be the row of another node.
            job, among = "job_id, cluster, uid", self._among(filters.nodes, values)
            parts.append(f"({job}) IN (SELECT {job} FROM job WHERE node IN ({among}))")
        if filters.jobs or filters.tasks:
            marks = ", ".join("?" * len(filters.jobs))
            either = [f"job_id IN ({marks})", f"array_job IN ({marks})"] if filters.jobs else []
            values += (*filters.jobs, *filters.jobs)
            either += ["(array_job = ? AND array_task = ?)"] * len(filters.tasks)
            values += (number for task in filters.tasks for number in task)
            parts.append(f"({' OR '.join(either)})")
        if filters.since is not None:
            # The longest stay bounds how long before a job can have begun, which is what the index knows.
            longest = self._db.execute("SELECT coalesce(max(longest_s), 0) FROM device").fetchone()[0]
            ended = "start >= ? AND end >= ?"
            running = self._running()
            # By their numbers: "OR end IS NULL" would make SQLite read every row there is.
            parts.append(f"(({ended}) OR id IN ({running}))" if running else ended)
            values += (filters.since - longest - 1, filters.since)
        if filters.until is not None:
            parts.append("start <= ?")
            values.append(filters.until)
        return " AND ".join(parts), values

    def _running(self) -> str:
        rows = self._db.execute("SELECT id FROM job WHERE settled = 0 AND end IS NULL")
        return ", ".join(str(number) for (number,) in rows)

    def _names(self, filters: Filters) -> Where:
        values: List[Any] = []
        parts = [
            f'"{column}" IN ({self._among(getattr(filters, field), values)})'
            for field, column in _NAME_FILTERS
            if getattr(filters, field)
        ]
        return " AND ".join(parts) or "1", values

    def _among(self, texts: Sequence[str], values: List[Any]) -> str:
        values += texts
        return f"SELECT id FROM word WHERE text IN ({', '.join('?' * len(texts))})"

    def _name(self, group: Optional[str], key: int) -> str:
        if group is None:
            return ""
        if group == "day":
            return time.strftime("%Y-%m-%d", time.gmtime(key * 86_400))
        return self._texts[key]


def percentiles(counts: Sequence[Tuple[int, int]], parts: Sequence[float]) -> Tuple[Optional[float], ...]:
    """Parts of 1 from sorted (thousandths, how many): the smallest that such a part does not exceed."""
    total = sum(count for _, count in counts)
    found = []
    for part in parts:
        seen = 0
        value: Optional[float] = None
        for error, count in counts:
            seen += count
            if seen >= part * total:
                value = error / 1000
                break
        found.append(value)
    return tuple(found)


def _count(lists: Mapping[int, Sequence[float]]) -> int:
    return sum(map(len, lists.values()))


def _total(groups: Sequence[Sequence[Any]]) -> List[Any]:
    """The sums of all, and the worst waste of any with its job."""
    worst = max(groups, key=lambda sums: sums[_WORST] or 0)
    return [*(sum(values) for values in zip(*(sums[:_WORST] for sums in groups))), *worst[_WORST:]]


def _sums_of_jobs() -> str:
    """The columns of a summary over rows of `job`."""
    return ", ".join([*(f"coalesce({sql}, 0)" for _, sql in _FACTS), _WORST_SQL, "job_id"])
