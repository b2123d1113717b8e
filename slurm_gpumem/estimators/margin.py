"""What a request adds to the estimated peak, as a function of the coverage that is wanted.

For each group of jobs (summaries by what they show, custom forwards, traces) it was measured how far above
its peak a job's need lies, on models that the fit had not seen. That distance is counted in units of
spread^a · peak^b · batch^c, the powers being the group's. The spread of a summary is how far runs of similar
models are apart, that of a trace the share of its peak that is not weights or optimizer states. With b below
1 a large job's margin is smaller than a small one's in proportion, because capacity is counted as a sum over
all jobs. A coverage is a number of units, so the margin is smooth in size and batch.

    models/margins.json: {"format": "gpumem-margins/1", "groups": {group: {"steps": [at LEVELS],
     "spread": power, "size": power, "batch": power, "coverage": what is asked for by default}}}
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from slurm_gpumem.data import data_file
from slurm_gpumem.estimators.fitted_file import fitted

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
    path = data_file("models", UNFINISHED)
    return fitted(path, "gpumem-unfinished/1", lambda content: float(content["factor"]))


def trace_spread(fixed_mib: float, peak_mib: float) -> float:
    """The spread of a traced job: weights and optimizer states (`fixed_mib`) are known to the byte."""
    return max(_LEAST_SPREAD, 1 - fixed_mib / peak_mib)


@lru_cache(maxsize=1)
def packaged() -> Mapping[str, GroupMargin]:
    """The package's own, by group."""
    return fitted(data_file("models", FILE), FORMAT, from_json)


def from_json(content: Any) -> Dict[str, GroupMargin]:
    """What a file says."""
    return {
        name: GroupMargin(**{**entry, "steps": tuple(entry["steps"])})
        for name, entry in content["groups"].items()
    }
