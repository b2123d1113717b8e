"""The site's constant for each type of GPU, from what its jobs took beyond their estimates.

An estimate comes from a job's comment, which its owner controls, so no single user may move what others ask
for: nothing is learned from fewer than three users, and a constant is the median over users of each one's own
median.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import plain_gpu
from slurm_gpumem.estimators.learned import MOST_MIB, GpuConstant, constants_json
from slurm_gpumem.files import write_atomic
from slurm_gpumem.site.learn_runs import SiteRun

LEAST_USERS, LEAST_RUNS, LEAST_MODELS = 3, 10, 5


def constants_from(runs: Iterable[SiteRun]) -> Dict[str, GpuConstant]:
    """By type of GPU, where there are enough runs."""
    return {kind: _constant(own) for kind, own in by_kind(runs).items() if not shortage(own)}


def by_kind(runs: Iterable[SiteRun]) -> Dict[str, List[SiteRun]]:
    """Runs by type of GPU."""
    kinds: Dict[str, List[SiteRun]] = {}
    for run in runs:
        kinds.setdefault(plain_gpu(run.gpu), []).append(run)
    return kinds


def shortage(runs: Sequence[SiteRun]) -> str:
    """Why there are too few runs on a type of GPU to learn from; "" if there are enough."""
    models, users = len({run.fingerprint for run in runs}), len({run.user for run in runs})
    if len(runs) >= LEAST_RUNS and models >= LEAST_MODELS and users >= LEAST_USERS:
        return ""
    return f"{len(runs)} jobs of {models} models by {users} users"


def _constant(runs: Sequence[SiteRun]) -> GpuConstant:
    own: Dict[str, List[int]] = {}
    for run in runs:
        own.setdefault(run.user, []).append(run.beyond_mib)
    middle = round(median(median(values) for values in own.values()))
    constant = max(-MOST_MIB, min(MOST_MIB, middle))
    spread = median(median(abs(value - middle) for value in values) for values in own.values())
    return GpuConstant(constant, round(spread), len(runs), len(own))


def write_constants(path: str, constants: Mapping[str, GpuConstant]) -> Optional[str]:
    """Write the file; the one before is kept under the next free number, and its name is returned."""
    kept = None
    try:
        if os.path.exists(path):
            name = next(name for n in range(1, 10_000) if not os.path.exists(name := f"{path}.{n}"))
            os.link(path, name)
            kept = name
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_atomic(Path(path), constants_json(constants, made), durable=True)
    except OSError as error:
        if kept is not None:
            os.unlink(kept)
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}. Run it as root, or name another file with --output"
        ) from None
    return kept
