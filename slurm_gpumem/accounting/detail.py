"""One job's records read again, for what the index does not hold: every run, every GPU, the curves."""

from __future__ import annotations

import os
import re
from typing import Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.accounting.gather.record_files import complete_lines, open_book, read_record_file
from slurm_gpumem.accounting.types import Attempt, Device, GpuStay
from slurm_gpumem.formats.curve import parse_curve
from slurm_gpumem.formats.job_record import (
    BadRecordError,
    GpuFigures,
    JobRecord,
    parse_job_record,
    record_name,
)

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
