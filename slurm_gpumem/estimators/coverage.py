"""Coverages: which share of jobs like it a request is to hold for, and what follows for the request."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil
from typing import Mapping, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.units import format_mib

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
"""Coverages at which requests are known; others lie on straight lines between them."""
LEAST, MOST = LEVELS[0], LEVELS[-1]
EXPLAINED = (0.9, 0.98, 0.995)
"""Coverages that --explain compares."""


def between(values: Sequence[float], coverage: float) -> float:
    """The value at a coverage, of values at LEVELS."""
    at = min(max(bisect_right(LEVELS, coverage), 1), len(LEVELS) - 1)
    low, high = LEVELS[at - 1], LEVELS[at]
    part = min(max((coverage - low) / (high - low), 0.0), 1.0)
    return values[at - 1] + (values[at] - values[at - 1]) * part


def request_at(requests: Sequence[int], coverage: float) -> int:
    """MiB to ask for at a coverage, of those at LEVELS."""
    return ceil(between(requests, coverage) - 1e-6)


def with_coverage(estimate: Estimate, coverage: float) -> Estimate:
    """The estimate with the request of another coverage; a warning where it has none to choose from."""
    if not LEAST <= coverage <= MOST:
        raise UsageError(f"the coverage must lie between {LEAST} and {MOST}, not {coverage:g}")
    margin = estimate.margin
    if not margin.requests:
        said = f"coverage {coverage:g} is not used: the estimator {estimate.estimator} has one request only"
        return estimate._replace(warnings=(*estimate.warnings, said))
    return estimate._replace(
        request_mib=request_at(margin.requests, coverage),
        margin=margin._replace(coverage=coverage),
    )


def within(estimate: Estimate, gpu: Gpu) -> Estimate:
    """The estimate with a request of at most the whole GPU where only the margin exceeds the GPU.

    The same where only a context that nobody measured brings the peak there: with it no job could run.
    """
    least = estimate.peak_mib - estimate.margin.spare_mib
    if not estimate.margin.requests or not estimate.request_mib > gpu.usable_mib >= least:
        return estimate
    beyond = max(0, estimate.peak_mib - gpu.usable_mib)
    said = (
        f"does not surely fit: the job may need {format_mib(estimate.request_mib)}, and one {gpu.name} has "
        f"{format_mib(gpu.usable_mib)} for jobs; {remedies(estimate, gpu)[0]} tells, a smaller batch helps"
    )
    return estimate._replace(
        peak_mib=estimate.peak_mib - beyond,
        parts={name: size - (beyond if name == "context" else 0) for name, size in estimate.parts.items()},
        floor_mib=min(estimate.floor_mib, gpu.usable_mib),
        request_mib=gpu.usable_mib,
        margin=estimate.margin._replace(wanted_mib=estimate.request_mib),
        warnings=(*estimate.warnings, said),
    )


_REMEDIES: Mapping[str, Tuple[str, ...]] = {
    "trace": ("one measured run (its peak is remembered)",),
    "shapeless": ("a summary with shapes (torchinfo with input_size)", "a trace (gpumem trace)"),
    "hidden": ("all layers (torchinfo with depth=20)", "a trace (gpumem trace)"),
}


def remedies(estimate: Estimate, gpu: Gpu) -> Tuple[str, ...]:
    """What would make the margin smaller."""
    from slurm_gpumem.estimators.gpu_types.environment import environment_of

    found = list(_REMEDIES.get(estimate.margin.group, ("a trace (gpumem trace)",)))
    if estimate.margin.group != "trace":
        found.append("one measured run (its peak is remembered)")
    ways = environment_of(estimate.job).possible_loading(gpu.compute_capability)
    if not gpu.measured and len(ways) > 1:
        found.append("--torch with the job's torch.__version__")
    if not gpu.measured or gpu.context_margin_mib:
        found.append(f"gpumem calibrate on {gpu.name}")
    return tuple(found)
