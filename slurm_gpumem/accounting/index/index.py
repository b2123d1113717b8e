"""Fill the index: rows from records, folded to jobs, GPU time split.

Two ways with the same result. A few new records touch their own jobs and GPUs only. Many at once
(a first index) are put in first, and everything computed from them is computed again.
"""

from __future__ import annotations

import sqlite3
from array import array
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.accounting.index import schema
from slurm_gpumem.accounting.index.rows import Run, rest_of
from slurm_gpumem.accounting.index.sweep import busy_periods, split_evenly
from slurm_gpumem.formats.verdicts import OOM, SLOT

_JUDGED = (schema.COMPLETED_WORD, schema.TIMEOUT_WORD)
"""Only such jobs show what they needed: others may have ended before their peak."""

_ENDED_BADLY = (schema.FAILED_WORD, schema.REQUEUED_WORD)

_OWN = (*schema.RUN_COLUMNS, *schema.PLACED, *schema.FOLDED)
_NAMES = ", ".join(f'"{name}"' for name in (*_OWN, "account"))
_INSERT = (
    f"INSERT INTO job ({_NAMES}) "
    f"VALUES ({', '.join('?' * (len(_OWN) + 1))}) "
    f"ON CONFLICT ({', '.join(schema.RUN_KEY)}) DO UPDATE SET "
    + ", ".join(
        f'"{name}" = coalesce(excluded."{name}", "{name}")'
        if name in ("array_job", "array_task")
        # Slurm's accounting may have said so before the node did.
        else f'"{name}" = excluded."{name}"'
        for name in _OWN
    )
)


class PlacedRun(NamedTuple):
    """A run, where its record lies, and whether that may still change."""

    run: Run
    folder: int
    settled: bool


class Touched(NamedTuple):
    """A row as it was before, or is after, it was replaced."""

    row: int
    job_id: int
    devices: str
    start: float
    end: Optional[float]


class IndexWriter:
    """Puts records into an index; the caller holds the transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._words: Dict[str, int] = dict(connection.execute("SELECT text, id FROM word"))
        self._devices: Dict[Tuple[str, str], int] = {
            (node, uuid): number
            for number, node, uuid in connection.execute("SELECT id, node, uuid FROM device")
        }
        self._nameless = {
            number for (number,) in connection.execute("SELECT id FROM device WHERE memory_mib IS NULL")
        }
        self._coded = [at for at, name in enumerate(schema.RUN_COLUMNS) if name in schema.WORDS]
        self._state = schema.RUN_COLUMNS.index("own_state")

    def word(self, text: str) -> int:
        """The number of a text, a new one for a new text."""
        number = self._words.get(text)
        if number is None:
            cursor = self._db.execute("INSERT INTO word (text) VALUES (?)", (text,))
            number = self._words[text] = int(cursor.lastrowid or 0)
        return number

    def put(self, placed: Iterable[PlacedRun]) -> None:
        """Put rows in, replacing those of the same run."""
        self._db.executemany(_INSERT, [self._row(one) for one in placed])

    def put_few(self, placed: Sequence[PlacedRun]) -> None:
        """The same, and all that follows from them."""
        keys = [self._key(one.run) for one in placed]
        before = self._touched(keys)
        self.put(placed)
        after = self._touched(keys)
        self.settle(before, after)

    def mark_strangers(self, runs: Iterable[Run]) -> None:
        """Find those of a user's own runs, all put in by now, that met jobs of others."""
        for run in runs:
            met = rest_of(run.rest).met.split()
            if any(self._is_stranger(int(job_id), self.word(run.cluster)) for job_id in met):
                (row,) = self._touched([self._key(run)])
                self._db.execute("UPDATE job SET strangers = 1 WHERE id = ?", (row.row,))

    def _is_stranger(self, job_id: int, cluster: int) -> bool:
        sql = "SELECT 1 FROM job WHERE job_id = ? AND cluster = ?"
        return self._db.execute(sql, (job_id, cluster)).fetchone() is None

    def settle(self, before: Sequence[Touched], after: Sequence[Touched]) -> None:
        """Compute again what follows from rows that were `before` and are `after`."""
        for job_id in {row.job_id for row in after}:
            self._fold(job_id)
        self._move_stays(before, after)

    def compute_all(self) -> None:
        """Everything that follows from the rows, from nothing; after many were put in."""
        for (job_id,) in self._db.execute(
            "SELECT job_id FROM job GROUP BY job_id HAVING count(*) > 1"
        ).fetchall():
            self._fold(job_id)
        self._all_stays()
        for statement in (schema.INDEXES + schema.ERRORS).split(";"):
            self._db.execute(statement)

    def touched(self, where: str, values: Sequence[Any]) -> List[Touched]:
        """The rows that a condition names, as they are now."""
        cursor = self._db.execute(f"SELECT id, job_id, devices, start, end FROM job WHERE {where}", values)
        return [Touched(*row) for row in cursor]

    # -- rows --------------------------------------------------------------------------------------

    def _row(self, placed: PlacedRun) -> List[Any]:
        run = placed.run
        row: List[Any] = list(run)
        words = self._words
        for at in self._coded:
            try:
                row[at] = words[row[at]]
            except KeyError:
                row[at] = self.word(row[at])
        peak, state = run.own_peak_mib, row[self._state]
        judged = bool(peak) and state in _JUDGED
        devices = run.devices
        if len(devices) == 1:
            row[-1] = str(self._device(run.node, devices[0]))
        else:
            row[-1] = " ".join([str(self._device(run.node, device)) for device in devices])
        error = _error_pm(run.estimate_mib, peak) if judged else None
        row += (
            placed.folder,
            placed.settled,
            0,
            1,
            run.start,
            peak,
            1,
            run.restarts + 1,
            run.oom,
            state,
            judged,
            error,
            0,
            schema.NONE_WORD,
        )
        return row

    def _device(self, node: str, device: Tuple[str, Optional[int], str, Optional[int]]) -> int:
        uuid, number, name, mib = device
        known = self._devices.get((node, uuid))
        if known is None:
            cursor = self._db.execute(
                "INSERT INTO device (node, uuid, number, name, memory_mib) VALUES (?, ?, ?, ?, ?)",
                (node, uuid, number, name, mib),
            )
            known = self._devices[node, uuid] = int(cursor.lastrowid or 0)
            if mib is None:
                self._nameless.add(known)
        elif mib is not None and known in self._nameless:
            # First seen in the record of a job that had just begun: nobody had looked at its GPU yet.
            self._db.execute(
                "UPDATE device SET number = ?, name = ?, memory_mib = ? WHERE id = ?",
                (number, name, mib, known),
            )
            self._nameless.discard(known)
        return known

    def _key(self, run: Run) -> Tuple[int, ...]:
        """Its values of RUN_KEY."""
        return run.job_id, run.restarts, self.word(run.node), self.word(run.cluster), run.uid

    def _touched(self, keys: Iterable[Tuple[int, ...]]) -> List[Touched]:
        where = " AND ".join(f"{name} = ?" for name in schema.RUN_KEY)
        return [row for key in keys for row in self.touched(where, key)]

    # -- jobs of several runs ----------------------------------------------------------------------

    def _fold(self, job_id: int) -> None:
        """One head for each job of that number, with what all its runs show."""
        jobs: Dict[Tuple[int, int], List[sqlite3.Row]] = {}
        cursor = self._db.cursor()
        cursor.row_factory = sqlite3.Row
        for row in cursor.execute("SELECT * FROM job WHERE job_id = ? ORDER BY restarts, node", (job_id,)):
            jobs.setdefault((row["cluster"], row["uid"]), []).append(row)
        for rows in jobs.values():
            last = [row for row in rows if row["restarts"] == rows[-1]["restarts"]]
            head = last[0]
            done = _succeeded(head, rows)
            ooms = {row["restarts"] for row in rows if row["oom"]} - done
            # A run's own record is closed before recovery has judged it; the next run's says why it was made.
            found = {row["restarts"] - 1 for row in rows if rest_of(row["rest"]).why == OOM} - ooms
            # That is the comment's word: it makes no run that succeeded one that did not.
            found -= done
            self._db.executemany(
                "UPDATE job SET oom = ? WHERE id = ?",
                [(row["restarts"] in found, row["id"]) for row in rows if row["restarts"] in found | done],
            )
            self._db.executemany(
                "UPDATE job SET head = 0, judged = 0, error_pm = NULL, state = own_state WHERE id = ?",
                [(row["id"],) for row in rows if row is not head],
            )
            # What a run did up to its slot's end, the next one goes on from.
            kept = {row["restarts"] for row in rows if rest_of(row["rest"]).verdict == SLOT}
            kept |= {row["restarts"] - 1 for row in rows if rest_of(row["rest"]).why == SLOT}
            redone = {row["restarts"] for row in rows} - kept - {head["restarts"]}
            self._db.executemany(
                "UPDATE job SET redone = ? WHERE id = ?",
                [(row["restarts"] in redone, row["id"]) for row in rows],
            )
            self._fold_nodes(rows)
            self._fold_into(head, last, rows, len(ooms | found & {row["restarts"] for row in rows}))

    def _fold_nodes(self, rows: Sequence[sqlite3.Row]) -> None:
        """The ranks of a run wait for each other: what neighbours cost the slowest, they cost all."""
        for restarts in {row["restarts"] for row in rows}:
            ranks = [row for row in rows if row["restarts"] == restarts]
            if len(ranks) > 1 and all(row["alone_s"] is not None for row in ranks):
                least = min(row["alone_s"] / row["gpus"] for row in ranks)
                self._db.executemany(
                    "UPDATE job SET alone_s = gpus * ? WHERE id = ?", [(least, row["id"]) for row in ranks]
                )

    def _fold_into(
        self, head: sqlite3.Row, last: Sequence[sqlite3.Row], rows: Sequence[sqlite3.Row], ooms: int
    ) -> None:
        state = head["slurm_state"]
        if state is None:
            # Of a job on several nodes, the node that saw it fail knows best.
            states = [row["own_state"] for row in last if row["own_state"] != schema.COMPLETED_WORD]
            state = states[0] if states else head["own_state"]
        peak = max((row["own_peak_mib"] for row in rows if row["own_peak_mib"] is not None), default=None)
        judged = bool(peak) and state in _JUDGED
        self._db.execute(
            "UPDATE job SET head = 1, first_start = ?, peak_mib = ?, records = ?, attempts = ?, ooms = ?, "
            "state = ?, judged = ?, error_pm = ? WHERE id = ?",
            (
                min(row["start"] for row in rows),
                peak,
                len(rows),
                # Slurm counts; of a run whose node failed there may be no record, or not yet.
                head["restarts"] + 1,
                ooms,
                state,
                int(judged),
                _error_pm(head["estimate_mib"], peak) if judged else None,
                head["id"],
            ),
        )

    # -- whose GPU time it was ---------------------------------------------------------------------

    def _move_stays(self, before: Sequence[Touched], after: Sequence[Touched]) -> None:
        """Stays of these rows, and the time of all jobs beside them."""
        ranges: List[Tuple[int, float, float]] = []
        for row in before:
            for device in map(int, row.devices.split()):
                self._db.execute(
                    "DELETE FROM stay WHERE device = ? AND start = ? AND run = ?",
                    (device, row.start, row.row),
                )
                if row.end is not None:
                    ranges.append((device, row.start, row.end))
        for row in after:
            # As if alone; the splits below take from it what others were there for.
            self._db.execute("UPDATE job SET used_s = (end - start) * gpus WHERE id = ?", (row.row,))
            for device in map(int, row.devices.split()) if row.end is not None else ():
                assert row.end is not None
                self._db.execute(
                    "INSERT OR REPLACE INTO stay VALUES (?, ?, ?, ?, ?)",
                    (device, row.start, row.row, row.end, row.end - row.start),
                )
                self._db.execute(
                    "UPDATE device SET longest_s = max(longest_s, ?) WHERE id = ?",
                    (row.end - row.start, device),
                )
                ranges.append((device, row.start, row.end))
        for device, start, end in ranges:
            self._split(device, start, end)

    def _split(self, device: int, start: float, end: float) -> None:
        """Split a GPU's time again for all who were there in a range."""
        affected = self._on_device(device, start, end)
        if not affected:
            return
        around = self._on_device(device, min(stay[1] for stay in affected), max(stay[2] for stay in affected))
        taken = split_evenly([stay[:3] for stay in around])
        for run, began, _, used in affected:
            if abs(taken[run] - (used or 0.0)) > 1e-6:
                self._db.execute(
                    "UPDATE stay SET used = ? WHERE device = ? AND start = ? AND run = ?",
                    (taken[run], device, began, run),
                )
                self._db.execute(
                    "UPDATE job SET used_s = used_s + ? WHERE id = ?", (taken[run] - (used or 0.0), run)
                )

    def _on_device(
        self, device: int, start: float, end: float
    ) -> List[Tuple[int, float, float, Optional[float]]]:
        longest = self._db.execute("SELECT longest_s FROM device WHERE id = ?", (device,)).fetchone()[0]
        return self._db.execute(
            "SELECT run, start, end, used FROM stay "
            "WHERE device = ? AND start >= ? AND start < ? AND end > ?",
            (device, start - longest - 1, max(end, start + 1e-3), start),
        ).fetchall()

    def _all_stays(self) -> None:
        self._db.execute("DELETE FROM stay")
        self._db.execute("UPDATE job SET used_s = (end - start) * gpus WHERE used_s <> (end - start) * gpus")
        self._db.execute(
            "INSERT INTO stay SELECT CAST(devices AS INTEGER), start, id, end, end - start FROM job "
            "WHERE end IS NOT NULL AND devices <> '' AND devices NOT LIKE '% %' ORDER BY 1, 2, 3"
        )
        several = self._db.execute(
            "SELECT id, devices, start, end FROM job WHERE end IS NOT NULL AND devices LIKE '% %'"
        )
        for run, devices, start, end in several.fetchall():
            self._db.executemany(
                "INSERT OR REPLACE INTO stay VALUES (?, ?, ?, ?, ?)",
                [(int(device), start, run, end, end - start) for device in devices.split()],
            )
        last = self._db.execute("SELECT coalesce(max(id), 0) FROM job").fetchone()[0]
        # By the runs' numbers, so that in the end the rows are changed in the order in which they lie.
        less = array("d", bytes(8 * (last + 1)))
        for (device,) in self._db.execute("SELECT id FROM device").fetchall():
            self._split_all(device, less)
        self._db.executemany(
            "UPDATE job SET used_s = used_s - ? WHERE id = ?",
            ((seconds, run) for run, seconds in enumerate(less) if seconds),
        )

    def _split_all(self, device: int, less: array[float]) -> None:
        """Split all of a GPU's time; `less` is what each run took less than the whole of it."""
        sql = "SELECT run, start, end FROM stay WHERE device = ? ORDER BY start"
        stays = self._db.execute(sql, (device,)).fetchall()
        longest = max((end - start for _, start, end in stays), default=0.0)
        self._db.execute("UPDATE device SET longest_s = ? WHERE id = ?", (longest, device))
        shares = []
        for period in busy_periods(stays):
            if len(period) > 1:
                taken = split_evenly(period)
                for run, start, end in period:
                    less[run] += end - start - taken[run]
                    shares.append((taken[run], device, start, run))
        self._db.executemany("UPDATE stay SET used = ? WHERE device = ? AND start = ? AND run = ?", shares)


def _succeeded(head: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> Set[int]:
    """The restarts of runs that ended well on all their nodes, or so Slurm says."""
    done = {row["restarts"] for row in rows}
    done -= {row["restarts"] for row in rows if row["own_state"] != schema.COMPLETED_WORD}
    # Slurm speaks of the job's last run, whose record may not have come from its node yet.
    if head["slurm_state"] == schema.COMPLETED_WORD and head["own_state"] not in _ENDED_BADLY:
        done.add(head["restarts"])
    return done


def _error_pm(estimate: Optional[int], peak: Optional[int]) -> Optional[int]:
    """|error| in thousandths of the peak; huge ones are capped."""
    return min(1_000_000, round(abs(estimate / peak - 1) * 1000)) if estimate and peak else None
