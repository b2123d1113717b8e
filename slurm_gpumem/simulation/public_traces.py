"""Public traces of GPU clusters, for those who downloaded them: Philly, Helios, Alibaba.

They say when jobs came, how long they ran and on how many GPUs; only Alibaba's say what part of a GPU was
asked for. Memory and activity are assumed (prior.py, "middle"), drawn by the job's place in the file. Jobs
that never ran or used no GPU are left out.
"""

from __future__ import annotations

import csv
import json
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.prior import PRIORS, draw_load, draw_memory
from slurm_gpumem.simulation.types import SimJob

GPU_MIB = 16_384
"""Memory of the GPU that assumed sizes are parts of: most of these clusters' GPUs had 16 GB or a little
more."""
STARTUP_MIB, STARTUP_S = 600, 30.0
_HELIOS = ("submit_time", "gpu_num", "duration")
_PODS = ("num_gpu", "creation_time", "deletion_time")
_TASKS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
          "plan_gpu", "gpu_type")  # fmt: skip
"""Columns of Alibaba's task table, which has no header."""


class _Seen(NamedTuple):
    arrival: float
    work: float
    gpus: int
    user: str = ""
    name: str = ""
    partition: str = ""
    part_of_gpu: float = 1.0


def public_format(head: str) -> Optional[str]:
    """Which of them begins like this; None where none does."""
    first = head.lstrip("\ufeff \n").split("\n", 1)[0]
    if first.startswith("[") and ("attempts" in head or "submitted_time" in head):
        return "philly"
    columns = set(first.strip().split(","))
    if columns >= set(_HELIOS):
        return "helios"
    if columns >= set(_PODS):
        return "alibaba-pods"
    return "alibaba-tasks" if first.count(",") == len(_TASKS) - 1 and ",worker," in head else None


def _philly(path: Path) -> Iterator[_Seen]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UsageError(f"{path}: is not JSON, as Philly's cluster_job_log is") from None
    for job in listed if isinstance(listed, list) else []:
        spans = []
        gpus = 0
        for attempt in job.get("attempts") or []:
            start, end = _moment(attempt.get("start_time")), _moment(attempt.get("end_time"))
            count = sum(len(part.get("gpus") or []) for part in attempt.get("detail") or [])
            if start is not None and end is not None and count:
                spans.append(end - start)
                gpus = max(gpus, count)
        submitted = _moment(job.get("submitted_time"))
        if spans and submitted is not None:
            user, group = str(job.get("user") or ""), str(job.get("vc") or "")
            yield _Seen(submitted, sum(spans), gpus, user, str(job.get("jobid") or ""), group)


def _helios(path: Path) -> Iterator[_Seen]:
    for row in _csv(path):
        submitted, gpus, work = _moment(row["submit_time"]), _number(row["gpu_num"]), _number(row["duration"])
        if submitted is not None and gpus and work:
            name = row.get("jobname") or row.get("job_name") or ""
            yield _Seen(submitted, work, int(gpus), row.get("user", ""), name, row.get("vc", ""))


def _pods(path: Path) -> Iterator[_Seen]:
    for row in _csv(path):
        created, deleted = _number(row["creation_time"]), _number(row["deletion_time"])
        begun = _number(row.get("scheduled_time", "")) or created
        gpus, thousandths = _number(row["num_gpu"]), _number(row.get("gpu_milli", ""))
        if created is not None and deleted is not None and begun is not None and gpus:
            part = min(1.0, (thousandths or 1000) / 1000)
            yield _Seen(created, deleted - begun, int(gpus), name=row.get("name", ""), part_of_gpu=part)


def _tasks(path: Path) -> Iterator[_Seen]:
    for row in _csv(path, _TASKS):
        start, end = _number(row["start_time"]), _number(row["end_time"])
        percent, workers = _number(row["plan_gpu"]), _number(row["inst_num"])
        if start and end and percent:
            each = max(1, int(percent // 100))
            gpus = each * max(1, int(workers or 1)) if percent >= 100 else 1
            yield _Seen(start, end - start, gpus, name=row["job_name"], part_of_gpu=min(1.0, percent / 100))


_READERS: Mapping[str, Callable[[Path], Iterator[_Seen]]] = {
    "philly": _philly,
    "helios": _helios,
    "alibaba-pods": _pods,
    "alibaba-tasks": _tasks,
}


def _reader(name: str) -> Callable[[Path], List[SimJob]]:
    def read(path: Path) -> List[SimJob]:
        try:
            seen = sorted(one for one in _READERS[name](path) if one.work > 0)
        except KeyError as error:
            raise UsageError(f"{path}: has no column {error}, as a trace of the format {name} has") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from None
        first = seen[0].arrival if seen else 0.0
        return [_job(number, one, first) for number, one in enumerate(seen)]

    return read


PUBLIC: Dict[str, Callable[[Path], List[SimJob]]] = {name: _reader(name) for name in _READERS}


def _job(number: int, seen: _Seen, first: float) -> SimJob:
    rng = Random(number)
    prior = PRIORS["middle"]
    memory = draw_memory(prior, int(GPU_MIB * seen.part_of_gpu), rng)
    return SimJob(
        number, seen.arrival - first, seen.work, seen.gpus, memory, draw_load(prior, rng),
        min(STARTUP_MIB, memory), min(STARTUP_S, seen.work / 2), seen.user, seen.name, seen.partition,
    )  # fmt: skip


def _csv(path: Path, columns: Optional[tuple[str, ...]] = None) -> Iterator[Dict[str, Any]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, columns)


def _number(text: Any) -> Optional[float]:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _moment(text: Any) -> Optional[float]:
    """Seconds of "2017-10-09 07:00:00", whatever the zone: only differences count."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()
