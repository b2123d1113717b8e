"""Read the measured jobs: alone on a GPU (rows of the ground truth that tell utilization), and in sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lab.ground_truth import JOB_TOGGLES, job_of, load_texts
from lab.places import BLIND_CHECKS, GROUND_TRUTH, HANDWRITTEN, SETS, shown
from lab.rows import rows_in
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import Gpu, TrainingJob
from slurm_gpumem.utilization.interference import EQUAL, PER_USER, SHARED, SIDE, TIMESLICE, TURNS
from slurm_gpumem.utilization.model import TARGETS

SOLO_FILES = (
    "rows-utilization",
    "rows-sets",
    "rows-written_utilization",
    "rows-fresh",
    "rows-third",
    "rows-later",
)
"""Files of measured runs whose rows have a job's utilization alone on the GPU."""
SOLO_FOLDERS = tuple(dict.fromkeys((GROUND_TRUTH, HANDWRITTEN, SETS, *BLIND_CHECKS)))
_PERCENT = ("sm_active", "sm_occupancy", "dram_active")


class Solo(NamedTuple):
    """One job that had the GPU to itself."""

    key: str
    summary: str
    """Key of its summary texts."""
    model: str
    family: str
    job: TrainingJob
    gpu: Gpu
    values: Mapping[str, float]
    """By TARGETS: shares from 0 to 1, seconds."""
    noise: Mapping[str, float]
    """How far apart its repeats are: their standard deviation, in the same units."""
    row: Mapping[str, Any]


class SharedSet(NamedTuple):
    """Jobs that shared a GPU, and the share of their speed alone that each kept."""

    mode: str
    jobs: Tuple[str, ...]
    speeds: Tuple[float, ...]
    solo: Tuple[Mapping[str, float], ...]
    """Each job's metrics alone, measured in the same worker: by TARGETS, shares and seconds."""
    users: Tuple[int, ...] = ()
    """Whose jobs they are; all of one user where empty."""
    pool: str = ""
    """The jobs that stood ready together; each was measured alone once for all sets of its pool."""
    watts: float = 0.0
    """Of the GPU while they ran together."""
    solo_watts: Tuple[float, ...] = ()
    """Of the GPU while each had it to itself."""


def way_of(one: SharedSet) -> str:
    """How its jobs shared the GPU; "mps" and "shared" are a server for all, without priorities."""
    return EQUAL if one.mode in (SIDE, SHARED) else one.mode


def mode_of(one: SharedSet) -> str:
    """The coefficients that it teaches: of jobs side by side, of jobs in turns; "" where both are in it."""
    users = one.users or (0,) * len(one.jobs)
    if one.mode in (SIDE, SHARED) or (one.mode == PER_USER and len(set(users)) == 1):
        return SIDE
    return TURNS if one.mode == TIMESLICE or len(set(users)) == len(users) else ""


def load_solo(folders: Sequence[Path] = SOLO_FOLDERS) -> List[Solo]:
    """All jobs that were measured alone; UsageError when there are none."""
    found = [
        _solo(row) for where in folders for name in SOLO_FILES for row in rows_in(where, name) if _usable(row)
    ]
    if not found:
        raise UsageError(
            f"{folders[0]}: no measured utilization there. Restore {shown(GROUND_TRUTH)} of the repository: "
            f"git checkout {shown(GROUND_TRUTH)}"
        )
    return found


def load_solo_texts(runs: Sequence[Solo]) -> Dict[str, Dict[str, str]]:
    """Summary key → tool → text, of these jobs' models."""
    return load_texts(SOLO_FOLDERS, {run.summary for run in runs})


def load_sets(folder: Optional[Path] = None, prefix: str = "sets") -> List[SharedSet]:
    """All sets of jobs that were measured together; an empty list where there are none.

    Files of another prefix are kept apart from what is fitted.
    """
    where = SETS if folder is None else folder
    alone: Dict[Tuple[str, str], Mapping[str, Any]] = {}
    found: List[SharedSet] = []
    for row in rows_in(where, prefix):
        if row.get("kind") == "solo":
            alone[row["pool"], row["job"]] = row
        elif row.get("speed") and not row.get("error"):
            given = row.get("solo") or {key: alone[row["pool"], key] for key in row["jobs"]}
            found.append(_set(row, given))
    return found


def _usable(row: Mapping[str, Any]) -> bool:
    known = all(name in JOB_TOGGLES or name == "mps" for name, on in row.get("toggles", {}).items() if on)
    taken = row.get("utilization") or {}
    return known and not row.get("error") and not row.get("oom") and bool(taken.get("step_seconds"))


def _solo(row: Mapping[str, Any]) -> Solo:
    taken = row["utilization"]
    repeats = [
        _values(repeat)
        for repeat in taken.get("repeats", ())
        if repeat.get("step_seconds") or repeat.get("steps_per_s")
    ]
    return Solo(
        key=row["key"],
        summary=row["summary"],
        model=row["model"],
        family=row["family"],
        job=job_of(row),
        gpu=find_gpu(row.get("gpu_entry") or "h200"),
        values=_values(taken),
        noise={name: _deviation([repeat[name] for repeat in repeats]) for name in TARGETS},
        row=row,
    )


def _set(row: Mapping[str, Any], solo: Mapping[str, Any]) -> SharedSet:
    return SharedSet(
        mode=str(row["mode"]),
        jobs=tuple(row["jobs"]),
        speeds=tuple(float(speed) for speed in row["speed"]),
        solo=tuple(_values(solo[key]) for key in row["jobs"]),
        users=tuple(row.get("users", ())),
        pool=str(row.get("pool", "")),
        watts=row.get("power_w") or 0.0,
        solo_watts=tuple(solo[key].get("power_w") or 0.0 for key in row["jobs"]),
    )


def _values(taken: Mapping[str, Any]) -> Dict[str, float]:
    found = {name: taken[name] / 100 for name in _PERCENT}
    seconds = taken.get("step_seconds")
    found["step_seconds"] = seconds if seconds else 1 / taken["steps_per_s"]
    return found


def _deviation(values: List[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
