"""Open the store and ask it: `open_store()`, then `select`, `detail`, `summary`, `wasters`."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from slurm_gpumem.accounting.gather.gather import Progress, refresh
from slurm_gpumem.accounting.gather.remember import remember_own
from slurm_gpumem.accounting.index import index_file, schema
from slurm_gpumem.accounting.index.rows import recipe_of, rest_of, split_parts
from slurm_gpumem.accounting.index.schema import UNJOINED
from slurm_gpumem.accounting.index.sums import Offset, Sums
from slurm_gpumem.accounting.types import (
    ALL,
    GROUPS,
    Device,
    Filters,
    Freshness,
    JobDetail,
    JobRow,
    JobTotals,
    Waster,
)
from slurm_gpumem.config.accounting import AccountingConfig, load_accounting_config
from slurm_gpumem.errors import ConfigError, UnknownNameError
from slurm_gpumem.formats.comment import said_slowdown

_AS_STORED = (
    "job_id", "uid", "estimate_mib", "request_mib", "shards", "limit_mib", "peak_mib", "submit", "end",
    "wait_s", "attempts", "ooms", "alone_s", "idle_s", "cpus", "cpus_mean", "array_job", "array_task",
)  # fmt: skip
"""Columns of the index that a row has as they are."""
_WORDS = ("cluster", "user", "account", "partition", "model", "estimator", "sharing", "gpu", "state")
"""... and those that stand in the table of words."""


class Store:
    """The indexed records that the caller may see; a context manager."""

    def __init__(self, connection: sqlite3.Connection, config: AccountingConfig, *, everybody: bool) -> None:
        self._db = connection
        self._config = config
        self._everybody = everybody
        self._texts = _Texts(connection)
        self._devices = _Devices(connection)
        self._names = _Names(connection)
        self._sums = Sums(connection, self._texts)

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

    def bad_records(self, limit: int = 20) -> Tuple[Tuple[str, str], ...]:
        """(path, reason) of records that could not be used."""
        return tuple(self._db.execute("SELECT path, reason FROM bad ORDER BY path LIMIT ?", (limit,)))

    def select(self, filters: Filters = ALL, *, limit: Optional[int] = None) -> Iterator[JobRow]:
        """The jobs in order of their start; with `limit`, only that number of the latest."""
        condition, values = self._sums.where(filters)
        order = "first_start, job_id"
        if filters.jobs or filters.tasks:
            order = "coalesce(array_job, job_id), array_task, job_id"
        sql = f"SELECT * FROM job WHERE head = 1 AND {condition} ORDER BY {order}"
        if limit is not None:
            latest = "first_start DESC, job_id DESC"
            sql = (
                f"SELECT * FROM (SELECT * FROM job WHERE head = 1 AND {condition} ORDER BY {latest} LIMIT ?) "
                f"ORDER BY {order}"
            )
            values.append(limit)
        rows = self._db.execute(sql, values)
        names = [column[0] for column in rows.description]
        for row in rows:
            # Not sqlite3.Row, which searches all names for each value.
            yield self._job(dict(zip(names, row)))

    def detail(self, row: JobRow) -> JobDetail:
        """One job in depth: reads its records again, curves included."""
        from slurm_gpumem.accounting.detail import read_runs

        places = self._db.execute(
            "SELECT folder.path, folder.owner, job_id, restarts, word.text, uid FROM job "
            "JOIN word ON word.id = job.node JOIN folder ON folder.id = job.folder "
            "WHERE job_id = ? AND uid = ? AND cluster = (SELECT id FROM word WHERE text = ?) "
            "ORDER BY restarts, word.text",
            (row.job_id, row.uid, row.cluster),
        ).fetchall()
        runs, missing = read_runs(places)
        return JobDetail(row, runs, missing)

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

    def _name_of(self, job_id: Optional[int], user: str) -> str:
        """A user's job by the name that Slurm gives it; "" where there is none."""
        row = self._db.execute(
            "SELECT cluster FROM job JOIN word ON word.id = user WHERE job_id = ? AND word.text = ?",
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

    def _job(self, row: Mapping[str, Any]) -> JobRow:
        text, rest = self._texts, rest_of(row["rest"])
        recipe = recipe_of(text[row["recipe"]])
        folded: Dict[str, Any] = {}
        if row["records"] > 1:
            folded = self._all_runs(row)
        ended = row["end"] is not None
        met = folded.get("met", rest.met)
        companions = tuple(sorted({int(job) for job in met.split()} - {row["job_id"]}))
        same: Dict[str, Any] = {name: row[name] for name in _AS_STORED}
        same.update({name: text[row[name]] for name in _WORDS})
        return JobRow(
            **same,
            job_name=row["job_name"] or "",
            fingerprint=recipe.fingerprint,
            batch=_number(recipe.batch),
            optimizer=recipe.optimizer,
            precision=recipe.precision,
            parts=split_parts(rest.parts),
            mean_mib=_number(rest.mean_mib),
            gpu_memory_mib=row["gpu_mib"],
            devices=self._devices.of(folded.get("devices", row["devices"])),
            companions=companions,
            company=tuple(sorted((self._names[row["cluster"], job] for job in companions), key=_by_numbers)),
            start=row["first_start"],
            run_s=folded.get("run_s", row["end"] - row["start"] if ended else None),
            exit_code=_number(rest.exit_code),
            signal=_number(rest.signal),
            slots=_number(rest.slots) or 0,
            sm_share=folded.get("sm_share", row["sm_share"]),
            gpu_sm=float(rest.gpu_sm) if rest.gpu_sm else None,
            energy_j=folded.get("energy_j", row["energy_j"]),
            gpu_s=folded.get("gpu_s", (row["end"] - row["start"]) * row["gpus"] if ended else None),
            slowdown=_slowdown(row, folded.get("met_last", rest.met)),
            said_slowdown=said_slowdown(rest.said)[0],
            said_at_most=said_slowdown(rest.said)[1],
            alone_by=rest.alone_by,
            cpus_high=float(rest.cpus_high) if rest.cpus_high else None,
            used_s=folded.get("used_s", None if row["strangers"] else row["used_s"]),
            would_s=folded.get("would_s", row["would_s"]),
            notes=tuple(rest.notes.split("\n")) if rest.notes else (),
            hints=tuple(rest.hints.split()),
            oom_limit_mib=folded.get("oom_limit_mib", row["limit_mib"] if row["oom"] else None),
        )

    def _all_runs(self, head: Mapping[str, Any]) -> Dict[str, Any]:
        """What a job's runs make together; the head's row has its own part only."""
        rows = self._db.execute(
            "SELECT energy_j, (end - start) * gpus, used_s, would_s, rest, "
            "CASE WHEN oom THEN limit_mib END, strangers, restarts, end - start, devices, sm_share FROM job "
            "WHERE job_id = ? AND cluster = ? AND uid = ? ORDER BY restarts",
            (head["job_id"], head["cluster"], head["uid"]),
        ).fetchall()
        energy, gpu_s, used_s, would_s, rests, limits, strangers, *_ = zip(*rows)
        # A run on several nodes is as long as on the one where it took longest.
        longest: Dict[int, float] = {}
        for *_, restarts, run_s, _, _ in rows:
            longest[restarts] = max(longest.get(restarts, 0.0), run_s or 0.0)
        last = [row for row in rows if row[7] == head["restarts"]]
        if any(strangers):
            used_s = ()
        sums = {"energy_j": energy, "gpu_s": gpu_s, "used_s": used_s, "would_s": would_s}
        known = {name: [value for value in values if value is not None] for name, values in sums.items()}
        return {
            **{name: sum(values) if values else None for name, values in known.items()},
            "run_s": sum(longest.values()) or None,
            "oom_limit_mib": next((limit for limit in reversed(limits) if limit is not None), None),
            "met": " ".join(rest_of(rest).met for rest in rests),
            "met_last": " ".join(rest_of(row[4]).met for row in last).strip(),
            "devices": " ".join(row[9] for row in last),
            # The busiest rank: the others wait for it.
            "sm_share": max((row[10] for row in last if row[10] is not None), default=None),
        }


class _Texts(Dict[int, str]):
    """Words by their number, read when asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection

    def __missing__(self, number: int) -> str:
        row = self._db.execute("SELECT text FROM word WHERE id = ?", (number,)).fetchone()
        text = self[number] = row[0] if row else ""
        return text


def _by_numbers(name: str) -> List[int]:
    return [int(number) for number in name.split("_")]


class _Names(Dict[Tuple[int, int], str]):
    """Names of jobs by (cluster, number), read when asked for: "4711_3" for a task of an array."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection
        found = connection.execute("SELECT 1 FROM job WHERE array_job IS NOT NULL LIMIT 1").fetchone()
        self._has_arrays = found is not None

    def __missing__(self, job: Tuple[int, int]) -> str:
        if not self._has_arrays:
            return str(job[1])
        row = self._db.execute(
            "SELECT array_job, array_task FROM job "
            "WHERE cluster = ? AND job_id = ? AND array_job IS NOT NULL",
            job,
        ).fetchone()
        name = self[job] = f"{row[0]}_{row[1]}" if row else str(job[1])
        return name


class _Devices(Dict[int, Device]):
    """GPUs by their number, read when asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection

    def of(self, numbers: str) -> Tuple[Device, ...]:
        """Those of a row's numbers, in the order of their nodes."""
        return tuple(sorted((self[int(number)] for number in numbers.split()), key=lambda gpu: gpu.node))

    def __missing__(self, number: int) -> Device:
        row = self._db.execute(
            "SELECT node, uuid, number, name, memory_mib FROM device WHERE id = ?", (number,)
        ).fetchone()
        device = self[number] = Device(*row) if row else Device("?", "?")
        return device


def open_store(
    *,
    config: Optional[AccountingConfig] = None,
    update: bool = True,
    join: bool = True,
    force: bool = False,
    progress: Optional[Progress] = None,
) -> Store:
    """The store of this site as the caller may see it, brought up to date first.

    `join` asks Slurm's accounting about jobs that ended; `force` looks at folders again that were looked at
    a moment ago; `progress` is called during longer work.
    """
    settings = config or load_accounting_config()
    site = index_file.readable_site_index(settings)
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

    return Store(index_file.open_own(settings, fill, update=update), settings, everybody=only is None)


def estimate_offsets() -> List[Offset]:
    """How far the site's estimates are off, by root's index as it is; nothing where that cannot be read."""
    try:
        config = load_accounting_config()
    except ConfigError:
        return []  # said by whoever reads the file
    found = _as_it_is(config.site_index / index_file.NAME, config)
    if found is None:
        return []
    with found as store:
        return store.offsets()


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


def _slowdown(row: Mapping[str, Any], met: str) -> Optional[float]:
    """Of a run that shared its GPU."""
    if row["end"] is None or not row["alone_s"] or not met:
        return None
    return float((row["end"] - row["start"]) * row["gpus"] / row["alone_s"])


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() else None
