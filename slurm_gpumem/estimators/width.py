"""How much is asked for beyond a peak: the doubt, as a function of the coverage that is wanted.

Of each group of jobs (texts by what they show, hand-written networks, traces) it is known how far above its
peak a job's need lies, measured on models that the fit had not seen. The unit of that distance follows the
job: its spread (how sure the estimate usually is of such a job), its size and its batch, each to a power of
the group. A large job's doubt is narrower than a small one's in proportion, because capacity is counted as a
sum over all jobs. In these units the need's quantiles are the same for all jobs of a group, so a coverage is
a number of units, and the doubt is smooth in size and batch: no rule switches, no shard is counted.

    models/widths.json: {"format": "gpumem-widths/1", "groups": {group: {"steps": [at LEVELS],
     "spread": power, "size": power, "batch": power, "coverage": what is asked for by default}}}
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.coverage import LEAST, LEVELS, MOST
from slurm_gpumem.estimators.trees import read_json, usable_number

FILE = "widths.json"
FORMAT = "gpumem-widths/1"
REFERENCE_CONTEXT_MIB = 764
"""Context of the measured GPU. Ratios are of whole processes there, so that an error of a few MiB in a tiny
job's tensors does not look large; on another GPU the same tensors are corrected by the same MiB."""
_UNIT_MIB = 4096.0
"""A job of this size has a doubt of its steps times its spread."""


class Width(NamedTuple):
    """The doubt of a group of jobs."""

    steps: Tuple[float, ...]
    """At LEVELS: how far above its peak, in units, a job's need is at most in that share of cases."""
    spread: float
    """The powers: the doubt grows with the spread to this one,"""
    size: float
    """... with the peak to this one,"""
    batch: float
    """... and with the batch size to this one."""
    coverage: float
    """What is asked for where nobody asks for another coverage."""

    def unit_mib(self, peak_mib: float, spread: float, batch: int) -> float:
        """One unit of a job's doubt in MiB."""
        scale: float = (peak_mib / _UNIT_MIB) ** self.size * spread**self.spread * batch**self.batch
        return _UNIT_MIB * scale


@lru_cache(maxsize=1)
def packaged() -> Mapping[str, Width]:
    """The package's own, by group."""
    path = data_path("models", FILE)
    return from_json(read_json(path), str(path))


def from_json(content: Any, where: str) -> Dict[str, Width]:
    """Check and take what a file says."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{where}: is not of format {FORMAT}; `make fit` writes it")
    try:
        return {str(name): _width(entry) for name, entry in content["groups"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where}: is damaged ({error}); `make fit` writes it again") from None


def _width(entry: Mapping[str, Any]) -> Width:
    steps = tuple(usable_number(step) for step in entry["steps"])
    if len(steps) != len(LEVELS) or list(steps) != sorted(steps) or steps[0] < 0:
        raise ValueError(f"steps must be {len(LEVELS)} rising numbers of at least 0")
    powers = {name: usable_number(entry[name]) for name in ("spread", "size", "batch")}
    if not all(0 <= power <= 1 for power in powers.values()):
        raise ValueError("a power must lie between 0 and 1")
    coverage = usable_number(entry["coverage"])
    if not LEAST <= coverage <= MOST:
        raise ValueError(f"a coverage must lie between {LEAST} and {MOST}")
    return Width(steps, coverage=coverage, **powers)
