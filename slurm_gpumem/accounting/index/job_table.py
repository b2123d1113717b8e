"""Rows of the table `job`, written and read: words and GPUs are numbers there."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Dict, Iterable, Iterator, List, Sequence

from slurm_gpumem.accounting.index.schema import (
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
from slurm_gpumem.accounting.types import Device

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
