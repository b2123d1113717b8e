"""CUDA faults that the index knows of, and whom they would have hit at one MPS server for all users."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple, Optional, Sequence, Set

from slurm_gpumem.accounting.schema import SHARED_WORD
from slurm_gpumem.formats.verdicts import NEIGHBOUR_FAULT, OWN_FAULT

LEAST_DAYS, LEAST_RUNS = 30.0, 1000
"""Less says little: a user who debugs a kernel for a week is a site's only faults."""


class Faults(NamedTuple):
    """Of runs that shared their GPUs."""

    runs: int
    gpus: int
    days: float
    ended: int
    """Runs that a CUDA fault ended ..."""
    together: int
    """... as part of several at one MPS server."""
    beside: int
    """Runs of other users on their GPUs at that time, which went on."""


def faults_among(db: sqlite3.Connection, condition: str, values: Sequence[object]) -> Optional[Faults]:
    """Of the rows of a condition; None where they are too few to go by.

    Faults of the GPU's own, which end every run at any server, are left out. A fault is dated by the end of
    the run that it ended: the index has no other time.
    """
    shared = f"sharing = {SHARED_WORD} AND end IS NOT NULL AND {condition}"
    runs, first, last = db.execute(
        f"SELECT count(*), min(start), max(end) FROM job WHERE {shared}", values
    ).fetchone()
    days = (last - first) / 86_400 if runs else 0.0
    if days < LEAST_DAYS and runs < LEAST_RUNS:
        return None
    gpus: Set[str] = set()
    for (devices,) in db.execute(f"SELECT DISTINCT devices FROM job WHERE {shared}", values):
        gpus.update(devices.split())
    hit = db.execute(
        f"SELECT id, uid, end, devices, instr(hints, '{NEIGHBOUR_FAULT}') > 0 FROM job WHERE {shared} "
        f"AND (instr(hints, '{OWN_FAULT}') OR instr(hints, '{NEIGHBOUR_FAULT}'))",
        values,
    ).fetchall()
    beside: Set[int] = set()
    for _, uid, end, devices, _ in hit:
        for device in map(int, devices.split()):
            there = db.execute(
                "SELECT job.id FROM device JOIN stay ON stay.device = device.id AND stay.start < ?2 "
                "AND stay.start > ?2 - device.longest_s - 1 AND stay.end > ?2 JOIN job ON job.id = stay.run "
                f"WHERE device.id = ?1 AND job.uid != ?3 AND job.sharing = {SHARED_WORD}",
                (device, end, uid),
            )
            beside.update(other for (other,) in there)
    ended = {row[0] for row in hit}
    return Faults(runs, len(gpus), days, len(ended), sum(row[-1] for row in hit), len(beside - ended))
