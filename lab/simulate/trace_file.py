"""Traces of our own format: CSV with a header, one job a line (lab/docs/simulate.md).

Lines that begin with "#" are comments. Only arrival_s, work_s and memory_mib must be there.
"""

from __future__ import annotations

import csv
from math import isfinite
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, TextIO, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.utilization.interference import JobLoad

REQUIRED = ("arrival_s", "work_s", "memory_mib")
USUAL: Mapping[str, float] = {
    "gpus": 1, "sm_active": 0.5, "sm_occupancy": 0.2, "dram_active": 0.2, "step_s": 0.03, "startup_mib": 600,
    "startup_s": 30, "limit_s": 0, "priority": 0,
}  # fmt: skip
"""What a job is taken for where a trace does not say; activities are shares from 0 to 1."""
WORDS = ("user", "name", "partition")
ESTIMATE = "estimate_"
"""Columns with what an estimator asks for, in MiB: estimate_horus, estimate_text …"""
_LARGEST = 1e12


def read_trace(path: Path) -> List[SimJob]:
    """The jobs of a file; UsageError says in which line what is wrong."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(_jobs(path, file))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not a text file in UTF-8") from None


def write_trace(path: Path, jobs: Sequence[SimJob], comment: Sequence[str] = ()) -> None:
    """Write CSV that `read_trace` reads; columns that no job needs are left out."""
    estimators = sorted({name for job in jobs for name in job.estimates})
    rows = [_row(job, estimators) for job in jobs]
    columns = [
        name
        for name in (rows[0] if rows else REQUIRED)
        if name in REQUIRED or any(row[name] not in ("", USUAL.get(name)) for row in rows)
    ]
    with open(path, "w", encoding="utf-8", newline="") as file:
        for line in comment:
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(job: SimJob, estimators: Sequence[str]) -> Dict[str, Any]:
    row: Dict[str, Any] = {
        "arrival_s": _short(job.arrival), "name": job.name, "user": job.user, "partition": job.partition,
        "gpus": job.gpus, "work_s": _short(job.work), "memory_mib": job.peak_mib,
        "sm_active": _short(job.load.active), "sm_occupancy": _short(job.load.occupancy),
        "dram_active": _short(job.load.dram), "step_s": _short(job.load.step), "startup_mib": job.startup_mib,
        "startup_s": _short(job.startup_s), "limit_s": _short(job.limit),
        "priority": job.priority,
    }  # fmt: skip
    row.update({ESTIMATE + name: job.estimates.get(name, "") for name in estimators})
    return row


def _short(value: float) -> float:
    return int(value) if value == int(value) else float(f"{value:.6g}")


def _jobs(path: Path, file: TextIO) -> Iterator[SimJob]:
    loads: Dict[Tuple[float, ...], JobLoad] = {}
    seen: Dict[Tuple[Tuple[str, int], ...], Mapping[str, int]] = {}
    for number, (line, row) in enumerate(_rows(path, file)):
        try:
            yield _job(number, row, loads, seen)
        except ValueError as error:
            raise UsageError(f"{path}: line {line}: {error}") from None


def _rows(path: Path, file: TextIO) -> Iterator[Tuple[int, Mapping[str, Any]]]:
    numbered = ((number, line) for number, line in enumerate(file, 1) if line.strip() and line[0] != "#")
    first_number, first = next(numbered, (0, ""))
    if not first:
        raise UsageError(f"{path}: no job in it")
    columns = _cells(path, first_number, first)
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UsageError(
            f"{path}: line {first_number}: the header has no column {', '.join(missing)}.\n"
            "lab/docs/simulate.md lists the columns."
        )
    for number, line in numbered:
        cells = _cells(path, number, line)
        if len(cells) != len(columns):
            raise UsageError(f"{path}: line {number} has {len(cells)} cells, the header {len(columns)}")
        yield number, dict(zip(columns, cells))


def _cells(path: Path, number: int, line: str) -> List[str]:
    if "\0" in line:  # which csv refuses before Python 3.11
        raise UsageError(f"{path}: line {number} has a zero byte")
    return next(csv.reader([line]))


def _job(
    number: int,
    row: Mapping[str, Any],
    loads: Dict[Tuple[float, ...], JobLoad],
    seen: Dict[Tuple[Tuple[str, int], ...], Mapping[str, int]],
) -> SimJob:
    unknown = [
        name for name in row if name not in REQUIRED and name not in USUAL and name not in WORDS
        and not name.startswith(ESTIMATE)
    ]  # fmt: skip
    if unknown:
        raise ValueError(f"unknown column {unknown[0]!r}")
    values = {name: _number(row, name, USUAL.get(name)) for name in (*REQUIRED, *USUAL)}
    shares = (values["sm_active"], values["sm_occupancy"], values["dram_active"])
    if max(shares) > 1:
        raise ValueError("sm_active, sm_occupancy and dram_active are shares from 0 to 1, not percent")
    gpus, memory = int(values["gpus"]), int(values["memory_mib"])
    if gpus < 1 or memory < 1 or values["step_s"] <= 0:
        raise ValueError("gpus, memory_mib and step_s must be more than 0")
    traits = (*shares, values["step_s"])
    load = loads.setdefault(traits, JobLoad(*traits))
    guesses = tuple(
        (name[len(ESTIMATE) :], int(_number(row, name, None)))
        for name in row
        if name.startswith(ESTIMATE) and row[name] not in ("", None)
    )
    return SimJob(
        number=number,
        arrival=values["arrival_s"],
        work=values["work_s"],
        gpus=gpus,
        peak_mib=memory,
        load=load,
        startup_mib=max(1, min(int(values["startup_mib"]), memory)),
        startup_s=values["startup_s"],
        user=str(row.get("user") or ""),
        name=str(row.get("name") or ""),
        partition=str(row.get("partition") or ""),
        limit=values["limit_s"],
        priority=int(values["priority"]),
        estimates=seen.setdefault(guesses, dict(guesses)),
    )


def _number(row: Mapping[str, Any], name: str, usual: float | None) -> float:
    text = row.get(name)
    if text is None or text == "":
        if usual is None:
            raise ValueError(f"{name} is missing")
        return usual
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {text!r}, not a number") from None
    if not isfinite(value) or abs(value) > _LARGEST or (value < 0 and name != "priority"):
        raise ValueError(f"{name} is {text!r}, not a number from 0 on")
    return value
