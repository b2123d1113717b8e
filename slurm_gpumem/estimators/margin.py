"""What a request adds to the estimated peak, as a function of the coverage that is wanted.

Of each group of jobs (texts by what they show, custom forwards, traces) it is known how far above its peak a
job's need lies, measured on models that the fit had not seen. That distance is counted in units of
spread^a · peak^b · batch^c, the powers being the group's. The spread of a text is how far runs of similar
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
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.coverage import LEAST, LEVELS, MOST
from slurm_gpumem.estimators.fitted_file import read_json, usable_number

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
    try:
        return max(1.0, usable_number(read_json(path)["factor"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is damaged ({error}); `python -m lab.fit.unfinished` writes it") from None


def trace_spread(fixed_mib: float, peak_mib: float) -> float:
    """The spread of a traced job: weights and optimizer states (`fixed_mib`) are known to the byte."""
    return max(_LEAST_SPREAD, 1 - fixed_mib / peak_mib)


@lru_cache(maxsize=1)
def packaged() -> Mapping[str, GroupMargin]:
    """The package's own, by group."""
    path = data_file("models", FILE)
    return from_json(read_json(path), path)


def from_json(content: Any, where: str) -> Dict[str, GroupMargin]:
    """Check and take what a file says."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{where}: is not of format {FORMAT}; `make fit` writes it")
    try:
        return {str(name): _margin(entry) for name, entry in content["groups"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: is damaged ({error}); `make fit` writes it again") from None


def _margin(entry: Mapping[str, Any]) -> GroupMargin:
    steps = tuple(usable_number(step) for step in entry["steps"])
    if len(steps) != len(LEVELS) or list(steps) != sorted(steps) or steps[0] < 0:
        raise ValueError(f"steps must be {len(LEVELS)} rising numbers of at least 0")
    powers = {name: usable_number(entry[name]) for name in ("spread", "size", "batch")}
    if not all(0 <= power <= 1 for power in powers.values()):
        raise ValueError("a power must lie between 0 and 1")
    coverage = usable_number(entry["coverage"])
    if not LEAST <= coverage <= MOST:
        raise ValueError(f"a coverage must lie between {LEAST} and {MOST}")
    return GroupMargin(steps, coverage=coverage, **powers)
