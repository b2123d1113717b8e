"""Fill the index: rows from records, folded to jobs, GPU time split.

Rows are folded as they come; whose GPU time it was is computed once, at the end, for the times that changed.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.accounting import schema
from slurm_gpumem.accounting.rows import error_pm
from slurm_gpumem.accounting.schema import (
    AT_FIRST,
    KEY,
    WRITTEN,
    Devices,
    Lines,
    Numbers,
    Row,
    Word,
    fields_of,
    names,
)
from slurm_gpumem.accounting.types import Device, shows_need
from slurm_gpumem.formats.verdicts import OOM, SLOT

# Rows of the table `job`, written and read: words and GPUs are numbers there.


_KEPT = "used_s"
"""Follows from who else was there: whoever puts a row changes it where that changes."""
_SLURM_FIRST = ("array_job", "array_task")
"""Slurm's accounting may have said so before the node did."""
_OF_RECORD = {name: f"?{at}" for at, name in enumerate(WRITTEN, 1)}
_FOLDED = {
    name: re.sub(r"[a-z]\w+", lambda column: _OF_RECORD[column[0]], sql) for name, sql in AT_FIRST.items()
}
_PUT = (
    f"INSERT INTO job ({names((*_OF_RECORD, *_FOLDED))}) "
    f"VALUES ({', '.join((*_OF_RECORD.values(), *_FOLDED.values()))}) "
    f"ON CONFLICT ({names(KEY)}) DO UPDATE SET "
    + ", ".join(
        f'"{name}" = coalesce(excluded."{name}", "{name}")'
        if name in _SLURM_FIRST
        else f'"{name}" = excluded."{name}"'
        for name in (*_OF_RECORD, *_FOLDED)
        if name != _KEPT
    )
)
_COLUMNS = names(Row._fields)
_WORDS, _LINES = fields_of(Word), fields_of(Lines)
_WRITTEN_WORDS = tuple(at for at in _WORDS if at < len(WRITTEN))
(_MET,), (_DEVICES,) = fields_of(Numbers), fields_of(Devices)


class Texts(Dict[int, str]):
    """Words by their number, read when asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection

    def __missing__(self, number: int) -> str:
        row = self._db.execute("SELECT text FROM word WHERE id = ?", (number,)).fetchone()
        text = self[number] = row[0] if row else ""
        return text


class Words(Dict[str, int]):
    """Numbers of words, a new one for a new word."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._db = connection

    def __missing__(self, text: str) -> int:
        row = self._db.execute("SELECT id FROM word WHERE text = ?", (text,)).fetchone()
        insert = "INSERT INTO word (text) VALUES (?)"
        number = self[text] = row[0] if row else int(self._db.execute(insert, (text,)).lastrowid or 0)
        return number


class JobTable:
    """Reads and puts rows; the caller holds the transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.words = Words(connection)
        self.texts = Texts(connection)
        self._devices: Dict[int, Device] = {}
        self._device_numbers: Dict[Device, int] = {}

    def put(self, rows: Iterable[Row]) -> None:
        """Put rows in, or in the place of the same runs'."""
        self._db.executemany(_PUT, [self._values(row) for row in rows])

    def rows(self, where: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """The rows of a condition (which may go on with ORDER BY)."""
        texts = self.texts
        for found in self._db.execute(f"SELECT {_COLUMNS} FROM job WHERE {where}", values):
            row = list(found)
            for at in _WORDS:
                row[at] = texts[row[at]]
            row[_DEVICES] = tuple(
                sorted(map(self.device, map(int, row[_DEVICES].split())), key=lambda device: device.node)
            )
            row[_MET] = tuple(map(int, row[_MET].split()))
            for at in _LINES:
                row[at] = tuple(row[at].split("\n")) if row[at] else ()
            yield Row._make(row)

    def _values(self, row: Row) -> List[Any]:
        values: List[Any] = list(row[: len(WRITTEN)])
        words = self.words
        for at in _WRITTEN_WORDS:
            values[at] = words[values[at]]
        values[_DEVICES] = " ".join([str(self.device_number(device)) for device in row.devices])
        values[_MET] = " ".join(map(str, row.met)) if row.met else ""
        for at in _LINES:
            values[at] = "\n".join(values[at]) if values[at] else ""
        return values

    def device(self, number: int) -> Device:
        """The GPU of a number."""
        if number not in self._devices:
            row = self._db.execute(
                "SELECT node, uuid, number, name, memory_mib FROM device WHERE id = ?", (number,)
            ).fetchone()
            self._devices[number] = Device(*row) if row else Device("?", "?")
        return self._devices[number]

    def device_number(self, device: Device) -> int:
        """The number of a GPU, a new one for a new GPU."""
        known = self._device_numbers.get(device)
        if known is None:
            known = self._device_numbers[device] = self._find_or_add(device)
        return known

    def _find_or_add(self, device: Device) -> int:
        found = self._db.execute(
            "SELECT id, memory_mib FROM device WHERE node = ? AND uuid = ?", device[:2]
        ).fetchone()
        if found is None:
            sql = "INSERT INTO device (node, uuid, number, name, memory_mib) VALUES (?, ?, ?, ?, ?)"
            return int(self._db.execute(sql, device).lastrowid or 0)
        if found[1] is None and device.memory_mib is not None:
            # First seen in the record of a job that had just begun: nobody had looked at its GPU yet.
            sql = "UPDATE device SET number = ?, name = ?, memory_mib = ? WHERE id = ?"
            self._db.execute(sql, (*device[2:], found[0]))
        return int(found[0])


Stay = Tuple[int, float, float]
"""(run, start, end) on one GPU."""
_ENDED_BADLY = ("FAILED", "REQUEUED")
_SAME_RUN = " AND ".join(f"{name} = ?" for name in schema.KEY)


class _Held(NamedTuple):
    """What a run had of its node's GPUs."""

    id: int
    job_id: int
    devices: str
    start: float
    end: Optional[float]
    slurm_state: int

    def stays(self) -> List[Tuple[int, float, int, float]]:
        """On each of its GPUs: the GPU, since when, which run, and up to when."""
        if self.end is None:
            return []
        return [(int(device), self.start, self.id, self.end) for device in self.devices.split()]


class IndexWriter:
    """Puts records into an index; the caller holds the transaction, and says `finish` at its end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.table = JobTable(connection)
        self._changed: Dict[int, Tuple[float, float]] = {}
        """By GPU, from when to when the time on it is to be split again."""

    def put(self, rows: Sequence[Row]) -> None:
        """Put rows in, replacing those of the same run."""
        jobs = {row.job_id for row in rows}
        before = self._held(jobs)
        self.table.put(rows)
        after = self._held(jobs)
        changed = [held for number, held in after.items() if before.get(number) != held]
        self._move([before[held.id] for held in changed if held.id in before], changed)
        runs = Counter([held.job_id for held in after.values()])
        # Of a job with one run what Slurm said of it, before its record was read again.
        said = {held.job_id for held in before.values() if held.slurm_state != schema.NONE_WORD}
        for job_id, count in runs.items():
            if count > 1 or job_id in said:
                self.fold(job_id)

    def finish(self) -> None:
        """What follows from many rows."""
        for device, (start, end) in self._changed.items():
            self._split(device, start, end)
        self._changed.clear()
        for statement in schema.INDEXES.split(";"):
            self._db.execute(statement)

    def mark_strangers(self, rows: Iterable[Row]) -> None:
        """Find those of a user's own runs, all put in by now, that met jobs of others."""
        for row in rows:
            if any(self._is_stranger(job_id, row.cluster) for job_id in row.met):
                self._db.execute(f"UPDATE job SET strangers = 1 WHERE {_SAME_RUN}", self._key(row))

    def _is_stranger(self, job_id: int, cluster: str) -> bool:
        sql = "SELECT 1 FROM job WHERE job_id = ? AND cluster = ?"
        return self._db.execute(sql, (job_id, self.table.words[cluster])).fetchone() is None

    def _key(self, row: Row) -> Tuple[int, ...]:
        words = self.table.words
        return row.job_id, row.restarts, words[row.node], words[row.cluster], row.uid

    def _held(self, jobs: Iterable[int]) -> Dict[int, _Held]:
        """By the rows' numbers, of all runs of these jobs."""
        columns, among = ", ".join(_Held._fields), ", ".join(map(str, sorted(jobs)))
        rows = self._db.execute(f"SELECT {columns} FROM job WHERE job_id IN ({among})")
        return {row[0]: _Held._make(row) for row in rows}

    # -- jobs of several runs ----------------------------------------------------------------------

    def fold(self, job_id: int) -> None:
        """One head for each job of that number, with what all its runs show."""
        jobs: Dict[Tuple[str, int], List[Row]] = {}
        for row in self.table.rows("job_id = ? ORDER BY restarts, node", (job_id,)):
            jobs.setdefault((row.cluster, row.uid), []).append(row)
        for rows in jobs.values():
            last = [row for row in rows if row.restarts == rows[-1].restarts]
            head = last[0]
            done = _succeeded(head, rows)
            ooms = {row.restarts for row in rows if row.oom} - done
            # A run's own record is closed before recovery has judged it; the next run's says why it was made.
            # That is the comment's word: it makes no run that succeeded one that did not.
            found = {row.restarts - 1 for row in rows if row.why == OOM} - ooms - done
            self._db.executemany(
                "UPDATE job SET oom = ? WHERE id = ?",
                [(row.restarts in found, row.id) for row in rows if row.restarts in found | done],
            )
            # What a run did up to its slot's end, the next one goes on from.
            kept = {row.restarts for row in rows if row.verdict == SLOT}
            kept |= {row.restarts - 1 for row in rows if row.why == SLOT}
            redone = {row.restarts for row in rows} - kept - {head.restarts}
            self._db.executemany(
                "UPDATE job SET head = 0, judged = 0, error_pm = NULL, state = own_state, redone = ? "
                "WHERE id = ?",
                [(row.restarts in redone, row.id) for row in rows],
            )
            self._fold_nodes(rows)
            self._fold_into(head, last, rows, len(ooms | found & {row.restarts for row in rows}))

    def _fold_nodes(self, rows: Sequence[Row]) -> None:
        """The ranks of a run wait for each other: what neighbours cost the slowest, they cost all."""
        for restarts in {row.restarts for row in rows}:
            ranks = [row for row in rows if row.restarts == restarts]
            alone = [row.alone_s / row.gpus for row in ranks if row.alone_s is not None]
            if len(alone) == len(ranks) > 1:
                self._db.executemany(
                    "UPDATE job SET alone_s = gpus * ? WHERE id = ?", [(min(alone), row.id) for row in ranks]
                )

    def _fold_into(self, head: Row, last: Sequence[Row], rows: Sequence[Row], ooms: int) -> None:
        # Of a job on several nodes, the node that saw it fail knows best.
        failed = [row.own_state for row in last if row.own_state != "COMPLETED"]
        state = head.slurm_state or (failed or [head.own_state])[0]
        peak = max((row.own_peak_mib for row in rows if row.own_peak_mib is not None), default=None)
        judged = shows_need(state, peak, [note for row in rows for note in row.notes])
        self._db.execute(
            "UPDATE job SET head = 1, first_start = ?, peak_mib = ?, records = ?, attempts = ?, ooms = ?, "
            "state = ?, judged = ?, error_pm = ? WHERE id = ?",
            (
                min(row.start for row in rows),
                peak,
                len(rows),
                # Slurm counts; of a run whose node failed there may be no record, or not yet.
                head.restarts + 1,
                ooms,
                self.table.words[state],
                judged,
                error_pm(head.estimate_mib, peak) if judged else None,
                head.id,
            ),
        )

    # -- whose GPU time it was ---------------------------------------------------------------------

    def _move(self, before: Iterable[_Held], after: Iterable[_Held]) -> None:
        """Runs' stays; a run's time is its own until it is split with all who were there."""
        gone = [stay for held in before for stay in held.stays()]
        come = sorted(stay for held in after for stay in held.stays())
        self._db.executemany(
            "DELETE FROM stay WHERE device = ? AND start = ? AND run = ?", [stay[:3] for stay in gone]
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO stay (device, start, run, end, used) VALUES (?1, ?2, ?3, ?4, ?4 - ?2)",
            come,
        )
        if before:
            self._db.executemany(
                "UPDATE job SET used_s = (end - start) * gpus WHERE id = ?", [(held.id,) for held in after]
            )
        for device, start, _, end in (*gone, *come):
            first, last = self._changed.get(device, (start, end))
            self._changed[device] = min(start, first), max(end, last)

    def _split(self, device: int, start: float, end: float) -> None:
        """Split a GPU's time again for all who were there in a range."""
        self._db.execute(
            "UPDATE device SET longest_s = max(longest_s, (SELECT coalesce(max(end - start), 0) FROM stay "
            "WHERE device = ? AND start >= ? AND start <= ?)) WHERE id = ?",
            (device, start, end, device),
        )
        affected = self._on_device(device, start, end)
        if not affected:
            return
        around = self._on_device(device, min(stay[1] for stay in affected), max(stay[2] for stay in affected))
        taken = split_evenly([stay[:3] for stay in around])
        changed = [
            (taken[run], taken[run] - used, device, began, run)
            for run, began, _, used in affected
            if abs(taken[run] - used) > 1e-6
        ]
        self._db.executemany(
            "UPDATE stay SET used = ? WHERE device = ? AND start = ? AND run = ?",
            [(used, *place) for used, _, *place in changed],
        )
        self._db.executemany(
            "UPDATE job SET used_s = used_s + ? WHERE id = ?",
            [(more, run) for _, more, _, _, run in changed],
        )

    def _on_device(self, device: int, start: float, end: float) -> List[Tuple[int, float, float, float]]:
        longest = self._db.execute("SELECT longest_s FROM device WHERE id = ?", (device,)).fetchone()[0]
        return self._db.execute(
            "SELECT run, start, end, used FROM stay "
            "WHERE device = ? AND start >= ? AND start < ? AND end > ?",
            (device, start - longest - 1, max(end, start + 1e-3), start),
        ).fetchall()


def _succeeded(head: Row, rows: Sequence[Row]) -> Set[int]:
    """The restarts of runs that ended well on all their nodes, or so Slurm says."""
    done = {row.restarts for row in rows} - {row.restarts for row in rows if row.own_state != "COMPLETED"}
    # Slurm speaks of the job's last run, whose record may not have come from its node yet.
    if head.slurm_state == "COMPLETED" and head.own_state not in _ENDED_BADLY:
        done.add(head.restarts)
    return done


def split_evenly(stays: Sequence[Stay]) -> Dict[int, float]:
    """Seconds of the GPU that each run took: the time it was there, divided by how many were."""
    taken = dict.fromkeys((run for run, _, _ in stays), 0.0)
    lasting = [stay for stay in stays if stay[2] > stay[1]]
    moments = sorted(
        [(start, 1, run) for run, start, _ in lasting] + [(end, 0, run) for run, _, end in lasting]
    )
    here: List[int] = []
    before = 0.0
    for moment, comes, run in moments:
        if here and moment > before:
            part = (moment - before) / len(here)
            for other in here:
                taken[other] += part
        before = moment
        if comes:
            here.append(run)
        else:
            here.remove(run)
    return taken
