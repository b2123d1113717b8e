"""The columns of `gpumem report`: a name, a value for programs, a text for people."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import INSTANCE, JobRow
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.formats.job_record import preallocated
from slurm_gpumem.formats.verdicts import HINTS
from slurm_gpumem.text import printable
from slurm_gpumem.units import duration, energy, hours, moment, percent, short_mib

DEFAULT = "JobID,User,Model,GPU,Est,Need,Share,Peak,Err,SM%,With,State,Note"
LONG = (
    "JobID,User,Account,Partition,Model,Batch,GPU,Shards,Est,Need,Share,Peak,Err,Waste,SM%,Energy,Wait,Elapsed,GPUh,"
    "Used,With,OOM,Runs,State,End,Note"
)
_WIDEST = 200


class Field(NamedTuple):
    """One column."""

    name: str
    key: str
    """Its name for programs."""
    value: Callable[[JobRow], Any]
    """What programs get: MiB, seconds, parts of 1."""
    text: Callable[[JobRow], str]
    width: int
    """The most it takes of a line; a longer text is cut."""
    right: bool = False


class Column(NamedTuple):
    """A field as asked for: "model%20" makes it that wide."""

    field: Field
    width: Optional[int] = None


def columns(text: str) -> List[Column]:
    """The columns of -o; UsageError names the nearest known one."""
    found = []
    known = {field.name.lower(): field for field in FIELDS}
    aliases = {
        "elapsedraw": "elapsed",
        "sm": "sm%",
        "cpu": "cpu%",
        "nodelist": "node",
        "estimate": "est",
        # Older names.
        "req": "need",
        "granted": "share",
    }
    for word in (word.strip() for word in text.split(",")):
        if not word:
            continue
        # "SM%" and "CPU%" end with what also parts name and width.
        name, _, width = (
            word.partition("%")
            if not _ends_in_percent(word)
            else (word.partition("%")[0] + "%", "", word.partition("%")[2].lstrip("%"))
        )
        name = aliases.get(name.lower(), name.lower())
        if name not in known:
            raise UnknownNameError("column", word, [field.name for field in FIELDS])
        digits = width.lstrip("-")
        if digits and not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= _WIDEST):
            raise UsageError(f"{word!r}: a width is a number from 1 to {_WIDEST}, like Model%20")
        found.append(Column(known[name], int(digits) if digits else None))
    if not found:
        raise UsageError("-o names no column; try -o JobID,User,Peak, or --helpformat for all of them")
    return found


def _ends_in_percent(word: str) -> bool:
    return word.lower().startswith(("sm%", "cpu%"))


def note(row: JobRow, arrow: str = "->") -> str:
    """What is worth saying of a job beside its figures."""
    said: List[str] = []
    if row.ooms:
        at = f"OOM at {short_mib(row.oom_limit_mib)}" if row.oom_limit_mib else "OOM"
        undivided = row.gpu if row.sharing == INSTANCE else "whole GPU"
        where = short_mib(row.limit_mib) if row.shards else undivided
        if row.attempts > 1:
            end = {"COMPLETED": "finished", "RUNNING": "running"}.get(row.state, "failed again")
            said.append(f"{at} {arrow} {where}, {end}")
        else:
            said.append(f"{at}, {'running again' if row.state == 'RUNNING' else 'lost'}")
    elif row.attempts > 1:
        said.append(f"run {row.attempts} times{', in slots' if row.slots else ''}")
    if not row.ooms and row.shards and row.peak_mib and row.limit_mib and row.peak_mib > row.limit_mib:
        said.append(f"{short_mib(row.peak_mib - row.limit_mib)} over its shards")
    if preallocated(row.notes):
        said.append("took memory in advance: need not known")
    said += [HINTS[hint].note for hint in row.hints if hint in HINTS and HINTS[hint].note]
    if row.estimator == "remembered":
        said.append("remembered")
    elif row.estimator == "mem":
        said.append("size by hand")
    if row.state == "FAILED" and not row.ooms and (row.exit_code or row.signal):
        said.append(f"signal {row.signal}" if row.signal else f"exit code {row.exit_code}")
    return "; ".join(said)


def _with(row: JobRow) -> str:
    return ",".join(row.company)


def _nodes(row: JobRow) -> str:
    return ",".join(dict.fromkeys(device.node for device in row.devices))


def _whole(value: Optional[int]) -> str:
    return "" if value is None else str(value)


def _same(get: Callable[[JobRow], str], width: int, name: str, key: str) -> Field:
    return Field(name, key, get, lambda row: printable(get(row)), width)


def _size(get: Callable[[JobRow], Optional[int]], name: str, key: str) -> Field:
    return Field(name, key, get, lambda row: short_mib(get(row)), 7, True)


def _count(get: Callable[[JobRow], Optional[int]], name: str, key: str, width: int = 8) -> Field:
    return Field(name, key, get, lambda row: _whole(get(row)), width, True)


def _ratio(get: Callable[[JobRow], Optional[float]], name: str, key: str) -> Field:
    def text(row: JobRow) -> str:
        value = get(row)
        return "" if value is None else f"{value:.2f}"

    return Field(name, key, lambda row: _rounded(get(row), 3), text, 6, True)


FIELDS: Sequence[Field] = (
    Field("JobID", "job_id", lambda row: row.job_id, lambda row: row.name, 14),
    Field("JobIDRaw", "job_id_raw", lambda row: row.job_id, lambda row: str(row.job_id), 12),
    _same(lambda row: row.job_name, 20, "JobName", "job_name"),
    _same(lambda row: row.user, 10, "User", "user"),
    _same(lambda row: row.account, 12, "Account", "account"),
    _same(lambda row: row.partition, 10, "Partition", "partition"),
    _same(lambda row: row.cluster, 12, "Cluster", "cluster"),
    _same(lambda row: row.model, 14, "Model", "model"),
    _same(lambda row: row.fingerprint, 16, "Fingerprint", "fingerprint"),
    _count(lambda row: row.batch, "Batch", "batch"),
    _same(lambda row: row.optimizer, 12, "Optimizer", "optimizer"),
    _same(lambda row: row.precision, 8, "Precision", "precision"),
    _same(lambda row: row.estimator, 10, "Estimator", "estimator"),
    _same(lambda row: row.gpu, 12, "GPU", "gpu"),
    _same(_nodes, 16, "Node", "node"),
    Field(
        "GPUs",
        "gpus",
        lambda row: [device.uuid for device in row.devices],
        lambda row: printable(",".join(device.label for device in row.devices)),
        24,
    ),
    _same(lambda row: row.sharing if row.share_known else "", 8, "Sharing", "sharing"),
    _count(lambda row: row.shards, "Shards", "shards", 6),
    _size(lambda row: row.estimate_mib, "Est", "estimate_mib"),
    _size(lambda row: row.request_mib, "Need", "request_mib"),
    _size(lambda row: row.granted_mib, "Share", "granted_mib"),
    _size(lambda row: row.peak_mib, "Peak", "peak_mib"),
    _size(lambda row: row.mean_mib, "Mean", "mean_mib"),
    Field(
        "Err",
        "error",
        lambda row: _rounded(row.error, 4),
        lambda row: percent(row.shown_error, sign=True),
        6,
        True,
    ),
    _size(lambda row: row.waste_mib, "Waste", "waste_mib"),
    Field(
        "SM%",
        "sm_share",
        lambda row: row.sm_share,
        lambda row: "" if row.sm_share is None else f"{row.sm_share * 100:.0f}",
        4,
        True,
    ),
    _ratio(lambda row: row.slowdown, "Slower", "slowdown"),
    _ratio(lambda row: row.said_slowdown, "Said", "said_slowdown"),
    _ratio(lambda row: row.said_at_most, "AtMost", "said_at_most"),
    Field("Idle", "idle_s", lambda row: _rounded(row.idle_s), lambda row: duration(row.idle_s), 11, True),
    _count(lambda row: row.cpus, "CPUs", "cpus", 5),
    Field(
        "CPU%",
        "cpu_used",
        lambda row: _rounded(row.cpus_mean / row.cpus, 4) if row.cpus and row.cpus_mean is not None else None,
        lambda row: f"{row.cpus_mean / row.cpus * 100:.0f}" if row.cpus and row.cpus_mean is not None else "",
        4,
        True,
    ),
    Field("Energy", "energy_j", lambda row: row.energy_j, lambda row: energy(row.energy_j), 10, True),
    Field("With", "companions", lambda row: list(row.companions), _with, 14),
    _count(lambda row: row.ooms, "OOM", "ooms", 3),
    _count(lambda row: row.attempts, "Runs", "attempts", 4),
    Field("Wait", "wait_s", lambda row: row.wait_s, lambda row: duration(row.wait_s), 11, True),
    Field("Elapsed", "run_s", lambda row: _rounded(row.run_s), lambda row: duration(row.run_s), 11, True),
    Field("GPUh", "gpu_s", lambda row: _rounded(row.gpu_s), lambda row: hours(row.gpu_s), 8, True),
    Field("Alone", "alone_s", lambda row: _rounded(row.alone_s), lambda row: hours(row.alone_s), 8, True),
    Field("Used", "used_s", lambda row: _rounded(row.used_s), lambda row: hours(row.used_s), 8, True),
    Field("Submit", "submit", lambda row: row.submit, lambda row: moment(row.submit), 19),
    Field("Start", "start", lambda row: row.start, lambda row: moment(row.start), 19),
    Field("End", "end", lambda row: row.end, lambda row: moment(row.end), 19),
    _same(lambda row: row.state, 13, "State", "state"),
    _count(lambda row: row.exit_code, "ExitCode", "exit_code"),
    Field("Note", "note", note, lambda row: printable(note(row)), 60),
)


def _rounded(value: Optional[float], digits: int = 1) -> Optional[float]:
    return None if value is None else round(value, digits)


def as_json(row: JobRow) -> Dict[str, Any]:
    """All that is known of a job, for programs."""
    values = {field.key: field.value(row) for field in FIELDS}
    return {
        **values,
        "array_job_id": row.array_job,
        "array_task_id": row.array_task,
        "uid": row.uid,
        "parts": dict(row.parts),
        "limit_mib": row.limit_mib,
        "gpu_memory_mib": row.gpu_memory_mib,
        "gpu_sm": row.gpu_sm,
        "cpus_mean": row.cpus_mean,
        "cpus_high": row.cpus_high,
        "would_s": _rounded(row.would_s),
        "alone_by": row.alone_by,
        "signal": row.signal,
        "recovered": row.recovered,
        "slots": row.slots,
        "hints": list(row.hints),
        "notes": list(row.notes),
    }


def field_names() -> Tuple[str, ...]:
    """For --helpformat."""
    return tuple(field.name for field in FIELDS)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def parsable(text: str) -> str:
    """For a line whose columns "|" parts."""
    return printable(text).replace("|", "?")


def cell(value: Any) -> Any:
    """For a spreadsheet: what would be read as a formula gets a quote before it; numbers stay numbers."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return "'" + text if text.startswith(_FORMULA) or text.lstrip()[:1] in _FORMULA else text
