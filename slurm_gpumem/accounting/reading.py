"""From a record's bytes to one row of the index; what cannot be used is refused with a reason.

A record is root's, but what stands in it is not: the comment's words are the job owner's, and
a store on a shared file system may hold files that users put there. So every value is checked for its type
and size, and a bad one is left out; only without the handful that name the run is the record refused.
"""

from __future__ import annotations

import json
import re
import time
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.verdicts import ran_out_of_memory

SCHEMA_PREFIX = "gpumem-job/"
KNOWN_SCHEMA = "gpumem-job/1"
MAX_BYTES = 1 << 20
_TEXT, _NOTE, _LIST, _MET = 64, 200, 16, 64
_MAX_ID, _MAX_MIB, _MAX_TIME, _MAX_JOULE = 1 << 40, 1 << 31, 1e11, 1e15
_PARTS = re.compile(r"[0-9]{1,8}(?:\+[0-9]{1,8}){6}", re.ASCII)
_QUARTER_S = 900
_SEPARATOR = "\x1f"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SHORT_NAME = re.compile(r"\b(RTX (?:PRO |A)?[0-9]{4}|(?:GTX |TITAN |MI|[A-Z]{1,2})[0-9]{1,4}[A-Z]{0,2})\b")

_DECODE = json.JSONDecoder().raw_decode
"""What json.loads calls in the end; a first index calls it a million times."""

_Device = Tuple[str, Optional[int], str, Optional[int]]
"""UUID, number on the node, name, MiB."""


class BadRecordError(ValueError):
    """This cannot be used; says why in a few words, the same for the same kind of fault."""


class Recipe(NamedTuple):
    """What a training run is made of, besides the GPU: runs of the same recipe need the same memory."""

    fingerprint: str
    batch: str
    optimizer: str
    precision: str
    variant: str
    """A hash of the rarer settings; empty where all are at their defaults."""


class Rest(NamedTuple):
    """What nobody searches or sums by; one text in the index."""

    parts: str
    mode: str
    verdict: str
    hints: str
    notes: str
    met: str
    exit_code: str
    signal: str
    samples: str
    gpu_sm: str
    mean_mib: str
    why: str
    """Of a run that recovery started: why the run before it ended."""


class Run(NamedTuple):
    """One run of a job on one node: the columns that come from its record, in the table's order."""

    cluster: str
    job_id: int
    restarts: int
    node: str
    uid: int
    user: str
    partition: str
    model: str
    recipe: str
    """A Recipe, joined."""
    estimator: str
    gpu: str
    gpu_mib: Optional[int]
    sharing: str
    shards: Optional[int]
    limit_mib: Optional[int]
    estimate_mib: Optional[int]
    request_mib: Optional[int]
    own_peak_mib: Optional[int]
    start: float
    end: Optional[float]
    own_state: str
    oom: int
    sm_share: Optional[float]
    energy_j: Optional[float]
    gpus: int
    month: int
    """The local month of its start, counted from the year 0."""
    day: int
    """The local day of its start, counted from 1970."""
    used_s: Optional[float]
    """GPU-seconds, until it is known whom it shared them with."""
    would_s: Optional[float]
    """GPU-seconds of a job that was only observed, had it shared by its request."""
    rest: str
    """A Rest, joined."""
    devices: Tuple[_Device, ...]
    """The table holds their numbers in the table of devices."""


def recipe_of(text: str) -> Recipe:
    """A recipe from the index's text for it."""
    return Recipe(*text.split(_SEPARATOR)) if text.count(_SEPARATOR) == 4 else Recipe("", "", "", "", "")


def recipe_text(recipe: Recipe) -> str:
    """The index's text for a recipe."""
    return _SEPARATOR.join(recipe)


def rest_of(text: str) -> Rest:
    """The rest from the index's text for it."""
    return Rest(*text.split(_SEPARATOR)) if text.count(_SEPARATOR) == 11 else Rest(*[""] * 12)


def parse_record(data: bytes) -> Dict[str, Any]:
    """The record as a table; BadRecordError when it is torn, too large, or another thing."""
    if len(data) > MAX_BYTES:
        raise BadRecordError("larger than 1 MiB")
    try:
        text = data.decode().lstrip()
        table, end = _DECODE(text)
        if text[end:].strip():
            raise ValueError
    except (ValueError, RecursionError):
        raise BadRecordError("torn or no JSON" if data.strip() else "empty") from None
    if not isinstance(table, dict) or not isinstance(table.get("schema"), str):
        raise BadRecordError("no job record")
    schema = table["schema"]
    if schema != KNOWN_SCHEMA:
        known = schema.startswith(SCHEMA_PREFIX)
        raise BadRecordError("of a newer gpumem" if known else "no job record")
    return table


def run_from(table: Mapping[str, Any], owner_uid: Optional[int] = None, *, shard_mib: int = 1024) -> Run:
    """The row of a record; `owner_uid` is who wrote the file, when that is not root or ourselves.

    A first index calls it a million times: hence one long tuple in the columns' order.
    """
    get = table.get
    job_id, restarts, uid = get("job_id"), get("restarts"), get("uid")
    node, start = get("node"), _time(get("start"))
    if (
        type(job_id) is not int
        or type(restarts) is not int
        or type(uid) is not int
        or not (0 <= job_id < _MAX_ID and 0 <= restarts < _MAX_ID and 0 <= uid < _MAX_ID)
        or type(node) is not str
        or start is None
    ):
        raise BadRecordError("without a usable job_id, restarts, uid, node or start")
    if owner_uid is not None and owner_uid != uid:
        raise BadRecordError("of one user's job, written by another user")
    try:
        return _run(table, job_id, restarts, uid, node, start, shard_mib, foreign=owner_uid is not None)
    except TypeError:
        # A list or a table where a name belongs: no gpumem has written that.
        raise BadRecordError("with values of the wrong type") from None


def _run(
    table: Mapping[str, Any],
    job_id: int,
    restarts: int,
    uid: int,
    node: str,
    start: float,
    shard_mib: int,
    *,
    foreign: bool,
) -> Run:
    get, claim = table.get, table.get("claimed")
    claimed = claim.get if type(claim) is dict else _NOTHING.get
    end = _time(get("end"))
    if end is not None and end < start:
        end = start  # the clock was set back while it ran
    exit_code, signal, shards = _whole(get("exit_code")), _whole(get("signal")), _whole(get("shards"))
    failed = bool(exit_code or signal)
    hints, notes, met = get("hints"), get("notes"), get("met")
    hints = _texts(hints, _TEXT) if hints else ()
    verdict = _verdict(get("verdict"))
    oom = ran_out_of_memory(verdict, hints if failed else ())
    state = _text(get("state"))
    if not state:
        state = (
            "RUNNING" if end is None else "FAILED" if failed else "COMPLETED" if exit_code == 0 else "UNKNOWN"
        )
    devices, sm_share, gpu_sm, gpu, gpu_mib = _gpus(get("gpus"), get("gpu"))
    request = _mib(get("request_mib"))
    observed = not shards and claimed("mode") == "observe"
    month, day = _month_and_day(int(start // _QUARTER_S))
    gpu_s = None if end is None else (end - start) * (len(devices) or 1)
    recipe = _recipe_text(claimed("fp"), claimed("batch"), claimed("opt"), claimed("prec"), claimed("more"))
    parts, samples, mean = claimed("parts"), get("samples"), _mib(get("mean_mib"))
    rest = (
        parts if type(parts) is str and _PARTS.fullmatch(parts) else "",
        _text(get("mode")),
        verdict,
        " ".join(hints) if hints else "",
        "\n".join(_texts(notes, _NOTE)) if notes else "",
        " ".join([str(other) for other in met[:_MET] if type(other) is int]) if type(met) is list else "",
        "" if exit_code is None else str(exit_code),
        "" if signal is None else str(signal),
        str(samples) if type(samples) is int else "",
        "" if gpu_sm is None else str(gpu_sm),
        "" if mean is None else str(mean),
        _text(claimed("why")) if restarts else "",
    )
    return Run(
        _text(get("cluster")),
        job_id,
        restarts,
        _text(node),
        uid,
        known_user(uid) or (str(uid) if foreign else _text(get("user")) or str(uid)),
        _text(get("partition")),
        _text(claimed("model")),
        recipe,
        _text(claimed("by")),
        gpu or _text(claimed("gpu")),
        gpu_mib,
        "shared" if shards else "observed" if observed else "whole",
        shards,
        _mib(get("limit_mib")),
        _mib(get("estimate_mib")),
        request,
        _mib(get("peak_mib")),
        start,
        end,
        state,
        int(oom),
        sm_share,
        _amount(get("energy_j"), _MAX_JOULE),
        len(devices) or 1,
        month,
        day,
        gpu_s,
        gpu_s * shared_part(request, gpu_mib, shard_mib)
        if observed and gpu_s and request and gpu_mib
        else None,
        _SEPARATOR.join(rest),
        devices,
    )


@lru_cache(maxsize=4096)
def known_user(uid: int) -> str:
    """The name that the system has for a number, "" without one: a record could claim any name."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def shared_part(request_mib: int, gpu_mib: int, shard_mib: int) -> float:
    """The part of a GPU that a request takes, in whole shards."""
    return min(1.0, -(-request_mib // shard_mib) / max(1, gpu_mib // shard_mib))


@lru_cache(maxsize=1024)
def short_gpu_name(name: str) -> str:
    """ "a100" of "NVIDIA A100-SXM4-40GB", "rtx 4090" of "NVIDIA GeForce RTX 4090"; "" of others."""
    match = _SHORT_NAME.search(name)
    return match[1].lower() if match else ""


def split_parts(text: str) -> Dict[str, int]:
    """The estimate's parts of the index's text for them; empty when there are none."""
    return CommentRecord(parts=text).part_sizes


def _gpus(
    uuids: Any, per_gpu: Any
) -> Tuple[Tuple[_Device, ...], Optional[float], Optional[float], str, Optional[int]]:
    """Devices, the job's SM share and the GPUs' activity (means over GPUs), their name, least memory."""
    devices: List[_Device] = []
    shares: List[float] = []
    whole: List[float] = []
    short, least = "", None
    table = per_gpu if type(per_gpu) is dict else _NOTHING
    for uuid in uuids[:_LIST] if type(uuids) is list else ():
        if type(uuid) is not str:
            continue
        values = table.get(uuid)
        get = values.get if type(values) is dict else _NOTHING.get
        device, name = _device(uuid, _whole(get("number")), get("name"), _mib(get("memory_mib")))
        if not devices:
            short = name
        devices.append(device)
        mib = device[3]
        if mib and (least is None or mib < least):
            least = mib
        share, activity = _amount(get("sm_active_share"), 1.5), _amount(get("gpu_sm_active"), 1.5)
        if activity is None:
            # Without SM counters the part of time with any kernel is the next best that NVML has.
            activity = _amount(get("gpu_utilization"), 1.5)
        if share is not None:
            shares.append(share)
        if activity is not None:
            whole.append(activity)
    return (
        tuple(devices),
        sum(shares) / len(shares) if shares else None,
        sum(whole) / len(whole) if whole else None,
        short,
        least,
    )


@lru_cache(maxsize=16_384)
def _recipe_text(*words: Any) -> str:
    return _SEPARATOR.join(map(_text, words))


@lru_cache(maxsize=16_384)
def _device(uuid: str, number: Optional[int], name: Any, mib: Optional[int]) -> Tuple[_Device, str]:
    """A GPU as it is stored, and its short name: the same for each job that was there."""
    named = _text(name)
    return (_text(uuid), number, named, mib), short_gpu_name(named)


def _verdict(found: Any) -> str:
    """What recovery wrote: a word, or a table with one."""
    if type(found) is dict:
        found = found.get("verdict") or found.get("kind")
    return _text(found)


@lru_cache(maxsize=4096)
def _month_and_day(quarter: int) -> Tuple[int, int]:
    """Of a quarter of an hour: no time zone changes its offset within one."""
    local = time.localtime(quarter * _QUARTER_S)
    return local.tm_year * 12 + local.tm_mon - 1, (quarter * _QUARTER_S + local.tm_gmtoff) // 86_400


@lru_cache(maxsize=16_384)
def _text(value: Any) -> str:
    """A name, made storable. The same names come again and again, and a look into the cache is quicker."""
    if not isinstance(value, str):
        return ""
    if len(value) > _TEXT or not value.isascii() or not value.isprintable():
        return _clean(value)[:_TEXT]
    return value


def _texts(value: Any, longest: int) -> List[str]:
    return (
        [_clean(text)[:longest] for text in value if type(text) is str][:_LIST] if type(value) is list else []
    )


def _clean(text: str) -> str:
    """Text that SQLite can hold, without our own separators; how it is shown is the printer's affair."""
    return "".join("?" if letter < " " else letter for letter in text).encode("utf-8", "replace").decode()


def _whole(value: Any) -> Optional[int]:
    return value if type(value) is int and 0 <= value < _MAX_ID else None


def _amount(value: Any, most: float) -> Optional[float]:
    """A finite number from 0 to `most`; json.loads lets NaN and Infinity through."""
    return value if (type(value) is float or type(value) is int) and 0 <= value <= most else None


def _mib(value: Any) -> Optional[int]:
    return round(value) if (type(value) is float or type(value) is int) and 0 <= value < _MAX_MIB else None


def _time(value: Any) -> Optional[float]:
    return float(value) if (type(value) is float or type(value) is int) and 0 < value < _MAX_TIME else None
