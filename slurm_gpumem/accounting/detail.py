"""One job's records read again, for what the index does not hold: every run, every GPU, the curves."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.accounting.gather import read_record_file
from slurm_gpumem.accounting.reading import BadRecordError, parse_record, rest_of, run_from
from slurm_gpumem.accounting.types import Attempt, Curve, Device, GpuStay

_MOST_POINTS = 1000


def read_runs(places: Sequence[Tuple[str, int, int, str]]) -> Tuple[Tuple[Attempt, ...], Tuple[str, ...]]:
    """The runs whose records lie at (folder, job, restarts, node), and the paths of those that are gone."""
    runs: List[Attempt] = []
    missing: List[str] = []
    for folder, job_id, restarts, node in places:
        record = _find(folder, job_id, restarts, node)
        if record is None:
            missing.append(f"{folder}/{job_id}.{restarts}.{node}.json")
        else:
            runs.append(attempt_of(record))
    return tuple(runs), tuple(missing)


def attempt_of(record: Mapping[str, Any]) -> Attempt:
    """One run as its record describes it."""
    run = run_from(record)
    rest = rest_of(run.rest)
    tables = record.get("gpu")
    tables = tables if isinstance(tables, dict) else {}
    return Attempt(
        restarts=run.restarts,
        node=run.node,
        start=run.start,
        end=run.end,
        state=run.own_state,
        exit_code=int(rest.exit_code) if rest.exit_code else None,
        signal=int(rest.signal) if rest.signal else None,
        mode=rest.mode,
        shards=run.shards,
        limit_mib=run.limit_mib,
        peak_mib=run.own_peak_mib,
        oom=bool(run.oom),
        verdict=rest.verdict,
        hints=tuple(rest.hints.split()),
        notes=tuple(rest.notes.split("\n")) if rest.notes else (),
        stays=tuple(
            _stay(Device(run.node, uuid, number, name, mib), run.start, run.end, tables.get(uuid))
            for uuid, number, name, mib in run.devices
        ),
    )


def curve_of(table: Any) -> Optional[Curve]:
    """The curve of a record's GPU: {"at", "step_s", "mib": "120 4300 …", "sm": "0 71 …"}; "-" is unknown."""
    if not isinstance(table, dict):
        return None
    at, step = _number(table.get("at")), _number(table.get("step_s"))
    memory, sm = _numbers(table.get("mib")), _numbers(table.get("sm"))
    if at is None or not step or not memory:
        return None
    shares = [None if value is None else min(1.0, value / 100) for value in sm]
    shares = (shares + [None] * len(memory))[: len(memory)]
    return Curve(at, step, tuple(memory), tuple(shares))


def _stay(device: Device, start: float, end: Optional[float], table: Any) -> GpuStay:
    values: Dict[str, Any] = table if isinstance(table, dict) else {}
    peak, mean = _number(values.get("peak_mib")), _number(values.get("mean_mib"))
    return GpuStay(
        device=device,
        start=start,
        end=end,
        peak_mib=None if peak is None else round(peak),
        mean_mib=None if mean is None else round(mean),
        energy_j=_number(values.get("energy_j")),
        sm_share=_number(values.get("sm_active_share")),
        gpu_sm=_number(values.get("gpu_sm_active")),
        gpu_dram=_number(values.get("gpu_dram_active")),
        gpu_utilization=_number(values.get("gpu_utilization")),
        gpu_power_w=_number(values.get("gpu_power_w")),
        curve=curve_of(values.get("curve")),
    )


def _find(folder: str, job_id: int, restarts: int, node: str) -> Optional[Dict[str, Any]]:
    """The record of a run: a file of its own, or a line of one of the folder's books."""
    try:
        data, _ = read_record_file(f"{folder}/{job_id}.{restarts}.{node}.json")
        return parse_record(data)
    except (OSError, BadRecordError):
        pass
    found = None
    for line in _lines_about(folder, job_id):
        try:
            record = parse_record(line)
        except BadRecordError:
            continue
        if (record.get("job_id"), record.get("restarts"), record.get("node")) == (job_id, restarts, node):
            found = record  # the last word counts
    return found


def _lines_about(folder: str, job_id: int) -> Iterator[bytes]:
    about = re.compile(rb'"job_id": ?%d[,}]' % job_id)
    try:
        books = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except OSError:
        return
    for name in books:
        try:
            with open(f"{folder}/{name}", "rb") as file:
                yield from (line for line in file if about.search(line))
        except OSError:
            continue


def _number(value: Any) -> Optional[float]:
    return value if type(value) in (int, float) and 0 <= value < 1e15 else None


def _numbers(text: Any) -> List[Optional[int]]:
    if not isinstance(text, str) or len(text) > 10 * _MOST_POINTS:
        return []
    words = text.split()[:_MOST_POINTS]
    return [int(word) if word.isascii() and word.isdigit() and len(word) < 10 else None for word in words]
