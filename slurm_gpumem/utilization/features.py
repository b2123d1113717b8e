"""What the learned part looks at: the roofline's own answers, and what decides how far to trust them."""

from __future__ import annotations

from math import log, log1p
from typing import List, NamedTuple

from slurm_gpumem.units import MIB
from slurm_gpumem.utilization.roofline import Times
from slurm_gpumem.utilization.work import KINDS, StepWork

NAMES = (
    "log_gpu_seconds",
    "log_cpu_seconds",
    "log_cpu_over_gpu",
    "coverage",
    "short",
    "logit_active",
    "logit_occupied",
    "logit_dram",
    "log_kernels",
    "log_flops_a_kernel",
    "log_bytes_a_kernel",
    "log_parameter_mib",
    "points_a_product",
    "casts_a_product",
    "guessed",
    *(f"share_{kind}" for kind in KINDS),
)
_LIMIT = 6.0


class TextQuality(NamedTuple):
    """What is known of a text or trace besides its work."""

    guessed: bool = False


def logit(share: float) -> float:
    """The log-odds of a share, within bounds that a measurement can tell apart."""
    inside = min(max(share, 1e-9), 1 - 1e-9)
    return min(max(log(inside / (1 - inside)), -_LIMIT), _LIMIT)


def features(work: StepWork, times: Times, quality: TextQuality) -> List[float]:
    """The numbers by NAMES."""
    flops = moved = kernels = 0
    for (_, arithmetic, taken, _), count in work.kernels.items():
        flops += arithmetic * count
        moved += taken * count
        kernels += count
    gpu = max(times.gpu, 1e-9)
    host = work.host
    return [
        log(gpu),
        log(max(times.cpu, 1e-9)),
        log(max(times.cpu, 1e-9) / gpu),
        times.busy / gpu,
        times.short / gpu,
        logit(times.busy / times.step),
        logit(times.warps / times.step),
        logit(times.traffic / times.step),
        log(max(kernels, 1)),
        log1p(flops / max(kernels, 1)),
        log1p(moved / max(kernels, 1)),
        log1p(work.parameter_bytes / MIB),
        host.points / max(host.products, 1),
        host.casts / max(host.products, 1),
        float(quality.guessed),
        *(seconds / gpu for seconds in times.by_kind),
    ]
