"""Open the store and ask it: `open_store()`, then `select`, `detail`, `summary`, `wasters`."""

from __future__ import annotations

import os
import re
import sqlite3
from operator import attrgetter
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.accounting import schema
from slurm_gpumem.accounting.faults import Faults, faults_among
from slurm_gpumem.accounting.gather import Progress, refresh
from slurm_gpumem.accounting.index import JobTable
from slurm_gpumem.accounting.record_files import complete_lines, open_book, read_record_file
from slurm_gpumem.accounting.remember import remember_own
from slurm_gpumem.accounting.schema import UNJOINED, Row
from slurm_gpumem.accounting.sums import Offset, Sums
from slurm_gpumem.accounting.types import (
    ALL,
    GROUPS,
    Attempt,
    Device,
    Filters,
    Freshness,
    GpuStay,
    JobDetail,
    JobRow,
    JobTotals,
    Waster,
)
from slurm_gpumem.config.accounting import AccountingConfig, load_accounting_config
from slurm_gpumem.errors import ConfigError, UnknownNameError
from slurm_gpumem.formats.comment import CommentRecord, said_slowdown
from slurm_gpumem.formats.curve import parse_curve
from slurm_gpumem.formats.job_record import (
    BadRecordError,
    GpuFigures,
    JobRecord,
    parse_job_record,
    record_name,
)

_SAME = tuple(name for name in JobRow._fields if name in Row._fields)
"""What a job has as the row of its head says it; some of it only where that is the job's only one."""
_VALUES = attrgetter(*_SAME)


class Store:
    """The indexed records that the caller may see; a context manager."""

    def __init__(self, connection: sqlite3.Connection, config: AccountingConfig, *, everybody: bool) -> None:
        self._db = connection
        self._config = config
        self._everybody = everybody
        self._table = JobTable(connection)
        self._names = _Names(connection)
        self._sums = Sums(connection, self._table.texts)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index."""
        self._db.close()

    @property
    def freshness(self) -> Freshness:
        """What the answers are based on."""
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        reasons = dict(self._db.execute("SELECT reason, sum(count) FROM bad GROUP BY reason ORDER BY 2 DESC"))
        return Freshness(
            records=self._db.execute("SELECT count(*) FROM job").fetchone()[0],
            bad=sum(reasons.values()),
            bad_reasons=reasons,
            indexed_at=float(meta["indexed_at"]) if "indexed_at" in meta else None,
            slurm=meta.get("slurm", "not asked yet"),
            everybody=self._everybody,
        )

    def bad_records(self) -> Tuple[Tuple[str, str], ...]:
        """(path, reason) of records that could not be used, of 20 at most."""
        return tuple(self._db.execute("SELECT path, reason FROM bad ORDER BY path LIMIT 20"))

    def select(self, filters: Filters = ALL, *, limit: Optional[int] = None) -> Iterator[JobRow]:
        """The jobs in order of their start; with `limit`, only that number of the latest."""
        condition, values = self._sums.where(filters)
        order = "first_start, job_id"
        if filters.jobs or filters.tasks:
            order = "coalesce(array_job, job_id), array_task, job_id"
        wanted = f"head = 1 AND {condition}"
        if limit is not None:
            latest = "ORDER BY first_start DESC, job_id DESC LIMIT ?"
            wanted = f"id IN (SELECT id FROM job WHERE {wanted} {latest})"
            values.append(limit)
        return map(self._job, self._table.rows(f"{wanted} ORDER BY {order}", values))

    def detail(self, row: JobRow) -> JobDetail:
        """One job in depth: reads its records again, curves included."""
        runs, missing = read_runs(self._places(row.job_id, row.uid, row.cluster))
        return JobDetail(row, runs, missing)

    def records_of(self, run: Row) -> List[JobRecord]:
        """The records of a run, one for each of its nodes."""
        places = self._places(run.job_id, run.uid, run.cluster)
        found = [_find(place) for place in places if place[3] == run.restarts]
        return [record for record in found if record is not None]

    def _places(self, job_id: int, uid: int, cluster: str) -> List[Place]:
        return self._db.execute(
            "SELECT folder.path, folder.owner, job_id, restarts, word.text, uid FROM job "
            "JOIN word ON word.id = job.node JOIN folder ON folder.id = job.folder "
            "WHERE job_id = ? AND uid = ? AND cluster = (SELECT id FROM word WHERE text = ?) "
            "ORDER BY restarts, word.text",
            (job_id, uid, cluster),
        ).fetchall()

    def summary(self, filters: Filters = ALL) -> JobTotals:
        """Sums over all jobs."""
        return self._sums.summary(filters)

    def summary_by(self, group: str, filters: Filters = ALL) -> List[JobTotals]:
        """Sums for every user, account, model, gpu, partition or day; the largest first, days in order."""
        if group not in GROUPS:
            raise UnknownNameError("group", group, list(GROUPS))
        return self._sums.summary_by(group, filters)

    def wasters(self, filters: Filters = ALL, *, limit: int = 5) -> Tuple[Waster, ...]:
        """Who keeps the most memory from others without using it."""
        found = self._sums.wasters(filters, limit)
        return tuple(one._replace(worst_name=self._name_of(one.worst_job, one.user)) for one in found)

    def offsets(self) -> List[Offset]:
        """By GPU type, how far estimates are from what jobs took."""
        return self._sums.offsets()

    def faults(self, filters: Filters = ALL) -> Optional[Faults]:
        """CUDA faults among shared runs; None of too few, and where others' runs are not ours to see."""
        return faults_among(self._db, *self._sums.where(filters)) if self._everybody else None

    def _name_of(self, job_id: Optional[int], user: str) -> str:
        """A user's job by the name that Slurm gives it; "" where there is none."""
        row = self._db.execute(
            "SELECT cluster.text FROM job JOIN word AS cluster ON cluster.id = job.cluster "
            "JOIN word AS user ON user.id = job.user WHERE job_id = ? AND user.text = ?",
            (job_id, user),
        ).fetchone()
        return self._names[row[0], job_id] if row and job_id is not None else str(job_id or "")

    @property
    def connection(self) -> sqlite3.Connection:
        """For the other modules of this room."""
        return self._db

    @property
    def config(self) -> AccountingConfig:
        """Where everything is."""
        return self._config

    def _job(self, row: Row) -> JobRow:
        values: Dict[str, Any] = dict(zip(_SAME, _VALUES(row)))
        slow, at_most = said_slowdown(row.said)
        run_s = None if row.end is None else row.end - row.start
        values.update(
            parts=CommentRecord(parts=row.parts).part_sizes,
            gpu_memory_mib=row.gpu_mib,
            start=row.first_start,
            run_s=run_s,
            gpu_s=None if run_s is None else run_s * row.gpus,
            used_s=None if row.strangers else row.used_s,
            slowdown=_slowdown(row, bool(row.met)),
            said_slowdown=slow,
            said_at_most=at_most,
            slots=row.slots or 0,
            oom_limit_mib=row.limit_mib if row.oom else None,
        )
        met = set(row.met)
        if row.records > 1:
            rows = self._runs_of(row)
            values.update(_of_all_runs(row, rows))
            met = {job for one in rows for job in one.met}
        companions = sorted(met - {row.job_id})
        names = sorted((self._names[row.cluster, job] for job in companions), key=_by_numbers)
        return JobRow(companions=tuple(companions), company=tuple(names), **values)

    def _runs_of(self, head: Row) -> List[Row]:
        words = self._table.words
        same = (head.job_id, words[head.cluster], head.uid)
        return list(self._table.rows("job_id = ? AND cluster = ? AND uid = ? ORDER BY restarts", same))


def _of_all_runs(head: Row, rows: Sequence[Row]) -> Dict[str, Any]:
    """What a job's runs make together; the head's row has its own part only."""
    last = [row for row in rows if row.restarts == head.restarts]
    # A run on several nodes is as long as on the one where it took longest.
    longest: Dict[int, float] = {}
    for row in rows:
        if row.end is not None:
            longest[row.restarts] = max(longest.get(row.restarts, 0.0), row.end - row.start)
    limits = [row.limit_mib for row in rows if row.oom and row.limit_mib is not None]
    devices = {device: None for row in last for device in row.devices}
    return {
        "energy_j": _sum(row.energy_j for row in rows),
        "gpu_s": _sum((row.end - row.start) * row.gpus for row in rows if row.end is not None),
        "used_s": None if any(row.strangers for row in rows) else _sum(row.used_s for row in rows),
        "would_s": _sum(row.would_s for row in rows),
        "run_s": sum(longest.values()) or None,
        "oom_limit_mib": limits[-1] if limits else None,
        "devices": tuple(sorted(devices, key=lambda device: device.node)),
        "slowdown": _slowdown(head, any(row.met for row in last)),
        # The busiest rank: the others wait for it.
        "sm_share": max((row.sm_share for row in last if row.sm_share is not None), default=None),
    }


def _sum(values: Iterable[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _by_numbers(name: str) -> List[int]:
    return [int(number) for number in name.split("_")]


class _Names(Dict[Tuple[str, int], str]):
    """Names of jobs by (cluster, number), read when asked for: "4711_3" for a task of an array."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection
        found = connection.execute("SELECT 1 FROM job WHERE array_job IS NOT NULL LIMIT 1").fetchone()
        self._has_arrays = found is not None

    def __missing__(self, job: Tuple[str, int]) -> str:
        if not self._has_arrays:
            return str(job[1])
        row = self._db.execute(
            "SELECT array_job, array_task FROM job "
            "WHERE cluster = (SELECT id FROM word WHERE text = ?) AND job_id = ? AND array_job IS NOT NULL",
            job,
        ).fetchone()
        name = self[job] = f"{row[0]}_{row[1]}" if row else str(job[1])
        return name


def open_store(
    *,
    config: Optional[AccountingConfig] = None,
    join: bool = True,
    force: bool = False,
    progress: Optional[Progress] = None,
) -> Store:
    """The store of this site as the caller may see it, brought up to date first.

    `join` asks Slurm's accounting about jobs that ended; `force` looks at folders again that were looked at
    a moment ago; `progress` is called during longer work.
    """
    settings = config or load_accounting_config()
    site = schema.readable_site_index(settings)
    found = site and _as_it_is(site, settings)
    if found:
        return found
    only = None if os.geteuid() == 0 else os.geteuid()

    def fill(connection: sqlite3.Connection) -> None:
        new = refresh(
            connection,
            settings.folders,
            shard_mib=settings.shard_mib,
            only_uid=only,
            progress=progress,
            force=force,
        )
        if join and connection.execute(f"SELECT EXISTS (SELECT 1 FROM job WHERE {UNJOINED})").fetchone()[0]:
            from slurm_gpumem.accounting.sacct import join_slurm

            join_slurm(connection, force=force)
        if new:
            remember_own(connection)

    return Store(schema.open_own(settings, fill), settings, everybody=only is None)


def offsets_and_faults() -> Tuple[List[Offset], Optional[Faults]]:
    """How far estimates are off, and faults of jobs, by root's index as it is, where that can be read."""
    try:
        config = load_accounting_config()
    except ConfigError:
        return [], None  # said by whoever reads the file
    found = _as_it_is(config.site_index / schema.NAME, config)
    if found is None:
        return [], None
    with found as store:
        return store.offsets(), store.faults()


def _as_it_is(path: Path, config: AccountingConfig) -> Optional[Store]:
    """Everybody's jobs, read only; None where the index is missing, being rebuilt, damaged, or not ours."""
    try:
        connection = schema.connect(path, read_only=True)
        if schema.is_current(connection):
            return Store(connection, config, everybody=True)
        connection.close()
    except sqlite3.Error:
        pass
    return None


def _slowdown(row: Row, met: bool) -> Optional[float]:
    """Of a run that shared its GPU."""
    if row.end is None or not row.alone_s or not met:
        return None
    return (row.end - row.start) * row.gpus / row.alone_s


# One job's records read again, for what the index does not hold: every run, every GPU, the curves.

_MEAN = "gpu_"
"""What the names of a GPU's means begin with."""
Place = Tuple[str, int, int, int, str, int]
"""Of a run's record: folder, whose files count there, job, restarts, node and uid."""


def read_runs(places: Sequence[Place]) -> Tuple[Tuple[Attempt, ...], Tuple[str, ...]]:
    """The runs whose records lie at these places, and the paths of those that are gone."""
    runs: List[Attempt] = []
    missing: List[str] = []
    for place in places:
        folder, _, job_id, restarts, node, _ = place
        record = _find(place)
        if record is None:
            missing.append(f"{folder}/{record_name(job_id, restarts, node)}")
        else:
            runs.append(attempt_of(record))
    return tuple(runs), tuple(missing)


def attempt_of(record: JobRecord) -> Attempt:
    """One run as its record describes it."""
    measured = record.measured
    return Attempt(
        restarts=record.restarts,
        node=record.node,
        start=record.start,
        end=record.end,
        state=record.known_state,
        exit_code=record.exit_code,
        signal=record.signal,
        mode=record.mode,
        shards=measured.shards,
        limit_mib=measured.limit_mib,
        peak_mib=_rounded(measured.peak_mib),
        oom=record.out_of_memory,
        verdict=record.verdict,
        hints=record.hints,
        events=tuple(dict.fromkeys(event.kind for event in measured.events)),
        idle_for_s=idle.seconds if (idle := record.idle()) else None,
        notes=record.notes,
        stays=tuple(_stay(record, uuid, measured.gpu.get(uuid, GpuFigures())) for uuid in record.gpus),
    )


def _stay(record: JobRecord, uuid: str, figures: GpuFigures) -> GpuStay:
    return GpuStay(
        device=Device(record.node, uuid, figures.number, figures.name, _rounded(figures.memory_mib)),
        start=record.start,
        end=record.end,
        peak_mib=_rounded(figures.peak_mib),
        mean_mib=_rounded(figures.mean_mib),
        energy_j=figures.energy_j,
        sm_share=figures.sm_active_share,
        gpu_sm=figures.gpu_sm_active,
        gpu_means={
            name[len(_MEAN) :]: value
            for name, value in figures._asdict().items()
            if name.startswith(_MEAN) and value is not None
        },
        curve=parse_curve(figures.curve),
    )


def _find(place: Place) -> Optional[JobRecord]:
    """The record of a run: a file of its own, or a line of one of the folder's books."""
    folder, owner, job_id, restarts, node, _ = place
    try:
        record = parse_job_record(read_record_file(f"{folder}/{record_name(job_id, restarts, node)}", owner))
        if _is_at(record, place):
            return record
    except (OSError, BadRecordError):
        pass
    found = None
    for line in _lines_about(folder, owner, job_id):
        try:
            record = parse_job_record(line)
        except BadRecordError:
            continue
        if _is_at(record, place):
            found = record  # the last word counts
    return found


def _is_at(record: JobRecord, place: Place) -> bool:
    return (record.job_id, record.restarts, record.node, record.uid) == place[2:]


def _lines_about(folder: str, owner: int, job_id: int) -> Iterator[bytes]:
    """Lines of the folder's books that may be the job's."""
    about = re.compile(rb'"job_id": ?%d[,}]' % job_id)
    try:
        books = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except OSError:
        return
    for name in books:
        try:
            book = open_book(f"{folder}/{name}", owner)
        except OSError:
            continue
        with book.file:
            yield from (line for line in complete_lines(book.file) if about.search(line))


def _rounded(mib: Optional[float]) -> Optional[int]:
    return None if mib is None else round(mib)
