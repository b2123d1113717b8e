"""What the learned part looks at: the roofline's own answers, and what decides how far to trust them."""

from __future__ import annotations

from math import log, log1p
from typing import List, NamedTuple

from slurm_gpumem.units import MIB
from slurm_gpumem.utilization.roofline import Times
from slurm_gpumem.utilization.work import KINDS, StepWork

_IN_WORDS = {
    "log_gpu_seconds": "the GPU's time for a step",
    "log_cpu_seconds": "the CPU's time for a step",
    "log_cpu_over_gpu": "the CPU's time beside the GPU's",
    "coverage": "how much of the GPU its kernels fill",
    "short": "its share of short kernels",
    "logit_active": "its SM activity",
    "logit_occupied": "its occupancy",
    "logit_dram": "its memory traffic",
    "log_kernels": "its number of kernels",
    "log_flops_a_kernel": "the arithmetic of its kernels",
    "log_bytes_a_kernel": "the bytes that its kernels move",
    "log_parameter_mib": "its number of parameters",
    "points_a_product": "its elementwise operations beside its matrix products",
    "casts_a_product": "its casts beside its matrix products",
    "guessed": "layers whose work is guessed",
}
NAMES = (*_IN_WORDS, *(f"share_{kind}" for kind in KINDS))
_LIMIT = 6.0


class TextQuality(NamedTuple):
    """What is known of a summary or trace besides its work."""

    guessed: bool = False


def in_words(name: str) -> str:
    """A feature as people call it."""
    return _IN_WORDS.get(name) or f"its time in {name[len('share_') :].replace('_', ' ')} kernels"


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
