"""Estimates that are kept: a model that is estimated or submitted again as before is not estimated again.

An estimate is known by the summary's text, the training, the GPU and the code and data that made it; those
are compared by size and time of change, so that an upgrade, a calibrated GPU or an edited source
counts at once. A kept estimate that cannot be read is made again.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.data import FOLDERS, package_folder
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import CustomForward, Estimate, Gpu, Margin, TrainingJob, Utilization
from slurm_gpumem.xdg import cache_path

if TYPE_CHECKING:
    from slurm_gpumem.summaries.types import ModelSummary

SCHEMA = "gpumem-kept-estimate/3"
_CODE, _DATA = ("estimators", "summaries", "utilization"), ("models", "models/fitted", "models/environments")
"""Folders of the package that an estimate rests on."""
_MOST_BYTES = 1 << 20
_KEPT = 500
"""Estimates of one user; the oldest go first."""


def memory_once(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float]
) -> Estimate:
    """The estimate: the kept one, else a new one, which is kept; its utilization may not be predicted yet."""
    path = _path(name, summary, job, gpu, coverage)
    found = _kept(path, job) if path else None
    if found is not None:
        return found
    made = registry.run(name, summary, job, gpu, coverage)
    if path:
        _keep(path, made)
    return made


def estimate_once(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float]
) -> Estimate:
    """The same with the job's utilization."""
    found = memory_once(name, summary, job, gpu, coverage)
    if found.utilization is not None or found.no_utilization:
        return found
    from slurm_gpumem.utilization.predict import with_utilization

    made = with_utilization(found, gpu, summary)
    path = _path(name, summary, job, gpu, coverage)
    if path:
        _keep(path, made)
    return made


def _path(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float]
) -> Optional[str]:
    """Where it is kept; None for what was measured of earlier runs: the next run changes it."""
    if not summary.digest or name in registry.FROM_RUNS:
        return None
    from slurm_gpumem.digest import name_of

    parts = (SCHEMA, name, summary.digest, summary.name, job, gpu, coverage, *_rests_on())
    return cache_path("estimates", name_of(repr(parts).encode()))


def _rests_on() -> Iterator[Tuple[object, ...]]:
    """State of each file that an estimate is made by: the package's, those beside the site's gpumem.toml."""
    for folder in _CODE:
        yield from sorted(_states(package_folder(folder)))
    for folder in (*map(package_folder, _DATA), *map(os.path.expanduser, FOLDERS)):
        yield from sorted(_states(folder, below=False))
    site = os.path.dirname(site_config_path()) or "."
    yield from sorted(row for row in _states(site, below=False) if row[0].startswith("gpumem"))


def _states(folder: str, *, below: bool = True) -> Iterator[Tuple[str, int, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if below and entry.name != "__pycache__":
                        yield from _states(entry.path)
                else:
                    found = entry.stat()
                    yield entry.name, found.st_size, found.st_mtime_ns
    except OSError:
        return  # not there, or not ours to read: then no estimate reads it either


def _kept(path: str, job: TrainingJob) -> Optional[Estimate]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_uid != os.geteuid():
                return None
            return _estimate(json.loads(file.read(_MOST_BYTES)), job)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # nothing is kept, or it is damaged


def _keep(path: str, made: Estimate) -> None:
    from slurm_gpumem.files import keep_newest, write_atomic

    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True, mode=0o700)
        write_atomic(path, json.dumps(_content(made)), mode=0o600)
        keep_newest(folder, _KEPT)
    except OSError:
        pass  # A full disk or a home that cannot be written: the next call estimates again.


def _content(made: Estimate) -> Dict[str, Any]:
    """All but the training, which is known."""
    content = made._asdict()
    del content["job"]
    if made.utilization is not None:
        content["utilization"] = made.utilization._asdict()
    return content


def _estimate(content: Dict[str, Any], job: TrainingJob) -> Estimate:
    """The estimate of a file; ValueError, KeyError or TypeError where it is damaged."""
    used, margin = content["utilization"], Margin(*content["margin"])
    if used is not None:
        intervals = {name: (float(low), float(high)) for name, (low, high) in used["intervals"].items()}
        used = Utilization(**{**used, "intervals": intervals, "warnings": tuple(used["warnings"])})
    custom = margin.custom_forward and CustomForward(*margin.custom_forward)
    custom = custom and custom._replace(classes=tuple(custom.classes))
    read = {
        "warnings": tuple(content["warnings"]),
        "assumptions": tuple(content["assumptions"]),
        "margin": margin._replace(requests=tuple(margin.requests), custom_forward=custom),
        "utilization": used,
    }
    found = Estimate(**{**content, **read}, job=job)
    if not all(isinstance(size, int) and size > 0 for size in (found.peak_mib, found.request_mib)):
        raise ValueError("no sizes")
    return found
