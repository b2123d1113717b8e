"""The site's constant for each type of GPU: how many MiB more its jobs took than was estimated.

    gpumem-learned.json beside the site's gpumem.toml, written by `gpumem learn`:
    {"format": "gpumem-learned/3", "made": "2026-01-31T12:00:00Z",
     "gpus": {"a100": {"mib": -1205, "spread_mib": 40, "jobs": 15, "users": 3}}}

Most of what differs between sites is the CUDA context, which belongs to the environment and is the same for
every job. So the constant is added to the estimate's context, and where there is one the context is known.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from slurm_gpumem.config.paths import beside_site_config
from slurm_gpumem.estimators.environment import loads_eagerly, without_context_margin
from slurm_gpumem.estimators.gpus import plain_gpu
from slurm_gpumem.estimators.types import SITE_SUFFIX, Estimate, Gpu
from slurm_gpumem.text import count

FORMAT = "gpumem-learned/3"
FILE = "gpumem-learned.json"
MOST_MIB = 4096
_SIZE_CAP = 1 << 20


class GpuConstant(NamedTuple):
    """What jobs on one type of GPU took beyond their estimates."""

    mib: int
    spread_mib: int
    """Half of the jobs are within this of the constant."""
    jobs: int
    users: int

    def __str__(self) -> str:
        jobs = f"{count(self.jobs, 'job')} of {count(self.users, 'user')}"
        return f"{self.mib:+,} MiB ({jobs}, half of them within {self.spread_mib:,} MiB)"


def learned_path() -> str:
    """Where the site's constants are: beside its gpumem.toml."""
    return beside_site_config(FILE)


def load_constants(path: str) -> Dict[str, GpuConstant]:
    """The constants by type of GPU; ValueError says what is wrong with the file."""
    with open(path, "rb") as file:
        text = file.read(_SIZE_CAP + 1)
    if len(text) > _SIZE_CAP:
        raise ValueError(f"larger than {_SIZE_CAP} bytes")
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}: run `gpumem learn` again")
        return {str(kind): _constant(entry) for kind, entry in content["gpus"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({error})") from None


def _constant(entry: Mapping[str, Any]) -> GpuConstant:
    found = GpuConstant(**entry)
    for name, value in found._asdict().items():
        if type(value) is not int or (name == "mib" and abs(value) > MOST_MIB):
            raise TypeError(f"{name} {value!r} is not a usable number")
    return found


def constants_json(constants: Mapping[str, GpuConstant], made: str) -> str:
    """The file's text."""
    gpus = {kind: one._asdict() for kind, one in sorted(constants.items())}
    return json.dumps({"format": FORMAT, "made": made, "gpus": gpus}, indent=1) + "\n"


def adjusted(estimate: Estimate) -> Estimate:
    """The estimate with the site's constant for its GPU; unchanged where there is none.

    A file that cannot be used causes a warning: it must not keep anybody from submitting.
    """
    path = learned_path()
    if not os.path.exists(path):
        return estimate
    try:
        constant = load_constants(path).get(plain_gpu(estimate.gpu))
    except (OSError, ValueError) as error:
        return estimate._replace(warnings=(*estimate.warnings, f"{path} is not used: {error}"))
    return estimate if constant is None else _with(estimate, constant)


def _with(estimate: Estimate, constant: GpuConstant) -> Estimate:
    # Jobs were compared with what is estimated where nothing is known of the environment.
    base = estimate.original()
    context = estimate.parts["context"]
    move = max(base.peak_mib + constant.mib - estimate.peak_mib, 1 - context)
    widen = base.request_mib + constant.mib - estimate.request_mib
    if loads_eagerly(estimate.job):
        # Few jobs do: what the others took does not make its context smaller.
        move, widen = max(move, 0), max(widen, 0)
    peak = estimate.peak_mib + move
    return estimate._replace(
        peak_mib=peak,
        request_mib=max(peak, estimate.request_mib + widen),
        margin=estimate.margin._replace(
            requests=tuple(max(peak, at + widen) for at in estimate.margin.requests), spare_mib=0
        ),
        floor_mib=min(max(1, estimate.floor_mib + min(move, 0)), peak),
        parts={**estimate.parts, "context": context + move},
        estimator=estimate.estimator + SITE_SUFFIX,
        assumptions=(
            *without_context_margin(estimate.assumptions),
            f"the CUDA context on {estimate.gpu} as in jobs here: {constant}",
        ),
        base=base._replace(learned_mib=constant.mib),
    )


def with_learned(gpu: Gpu, path: Optional[str] = None) -> Gpu:
    """The GPU (`in_environment`) with the context that jobs here showed: for memory lines, which have none.

    A file that cannot be used changes nothing; estimates warn of it.
    """
    try:
        constant = load_constants(learned_path() if path is None else path).get(plain_gpu(gpu.name))
    except (OSError, ValueError):
        return gpu
    if constant is None:
        return gpu
    return gpu._replace(
        context_margin_mib=0,
        context_spare_mib=0,
        context_bare_mib=max(1, gpu.context_for(conv=False, matmul=False) + constant.mib),
        context_conv_mib=max(1, gpu.context_for(conv=True, matmul=False) + constant.mib),
        context_matmul_mib=max(1, gpu.context_for(conv=False, matmul=True) + constant.mib),
        context_mib=max(1, gpu.context_mib + constant.mib),
    )
