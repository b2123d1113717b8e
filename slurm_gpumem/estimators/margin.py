"""What a request adds to the estimated peak, as a function of the coverage that is wanted.

For each group of jobs (summaries by what they show, custom forwards, traces) it was measured how far above
its peak a job's need lies, on models that the fit had not seen. That distance is counted in units of
spread^a · peak^b · batch^c, the powers being the group's. The spread of a summary is how far runs of similar
models are apart, that of a trace the share of its peak that is not weights or optimizer states. With b below
1 a large job's margin is smaller than a small one's in proportion, because capacity is counted as a sum over
all jobs. A coverage is a number of units, so the margin is smooth in size and batch.

    models/fitted/margins.json: {"format": "gpumem-margins/1", "groups": {group: {"steps": [at LEVELS],
     "spread": power, "size": power, "batch": power, "coverage": what is asked for by default}}}
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import ceil
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.data import data_file, fitted
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.units import format_mib

FILE = "margins.json"
FORMAT = "gpumem-margins/1"
UNFINISHED = "unfinished.json"
TRACE = "trace"
"""The group of traced jobs."""
REFERENCE_CONTEXT_MIB = 764
"""Context of the measured GPU. Ratios are of whole processes there, so that an error of a few MiB in a tiny
job's tensors does not look large; on another GPU the same tensors get the same margin."""
_LEAST_SPREAD = 0.02
"""Of a trace: context and fragmentation are never known to the byte."""
_UNIT_MIB = 4096.0
"""A job of this size and batch size 1 has a margin of its steps times this, where its spread is 1."""


class GroupMargin(NamedTuple):
    """The margin of a group of jobs."""

    steps: Tuple[float, ...]
    """At LEVELS: how far above its peak, in units, a job's need is at most in that share of cases."""
    spread: float
    """The powers: a unit grows with the spread to this one,"""
    size: float
    """... with the peak to this one"""
    batch: float
    """... and with the batch size to this one."""
    coverage: float
    """What is asked for where nobody asks for another coverage."""

    def unit_mib(self, peak_mib: float, batch: int, spread: float) -> float:
        """One unit of a job's margin in MiB."""
        scale: float = (peak_mib / _UNIT_MIB) ** self.size * batch**self.batch * spread**self.spread
        return _UNIT_MIB * scale

    def requests(self, peak_mib: float, batch: int, spread: float) -> Tuple[float, ...]:
        """MiB to ask for at each coverage of LEVELS; peak and requests with the reference context."""
        unit = self.unit_mib(peak_mib, batch, spread)
        return tuple(peak_mib + step * unit for step in self.steps)


@lru_cache(maxsize=1)
def unfinished_factor() -> float:
    """What the request of a trace that did not come to its script's end is multiplied by, without context."""
    path = data_file("models/fitted", UNFINISHED)
    return fitted(path, "gpumem-unfinished/1", lambda content: float(content["factor"]))


def trace_spread(fixed_mib: float, peak_mib: float) -> float:
    """The spread of a traced job: weights and optimizer states (`fixed_mib`) are known to the byte."""
    return max(_LEAST_SPREAD, 1 - fixed_mib / peak_mib)


@lru_cache(maxsize=1)
def packaged() -> Mapping[str, GroupMargin]:
    """The package's own, by group."""
    return fitted(data_file("models/fitted", FILE), FORMAT, from_json)


def from_json(content: Any) -> Dict[str, GroupMargin]:
    """What a file says."""
    return {
        name: GroupMargin(**{**entry, "steps": tuple(entry["steps"])})
        for name, entry in content["groups"].items()
    }


# -- Coverages: which share of jobs like it a request is to hold for, and what follows for the request

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
    from slurm_gpumem.estimators.environment import environment_of

    found = list(_REMEDIES.get(estimate.margin.group, ("a trace (gpumem trace)",)))
    if estimate.margin.group != "trace":
        found.append("one measured run (its peak is remembered)")
    ways = environment_of(estimate.job).possible_loading(gpu.compute_capability)
    if not gpu.measured and len(ways) > 1:
        found.append("--torch with the job's torch.__version__")
    if not gpu.measured or gpu.context_margin_mib:
        found.append(f"gpumem calibrate on {gpu.name}")
    return tuple(found)
