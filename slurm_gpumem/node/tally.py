"""Counts of the jobs that have ended on this node, kept over the sampler's own ends and starts.

They are what a time series needs and a record cannot give: numbers that only grow. They live beside the
node's other volatile state and start from 0 when the node does, as Prometheus expects of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from slurm_gpumem.files import read_json, write_json
from slurm_gpumem.formats import verdicts

SCHEMA = "gpumem-counters/1"
RATIO_BOUNDS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Upper bounds of the buckets of estimate ÷ peak; up to 1 the estimate was too low."""
_LONGEST_STATE = 24


@dataclass
class Tally:
    """What has been counted so far."""

    ended: Dict[str, int] = field(default_factory=dict)
    """State in small letters → runs that ended so."""
    out_of_memory: int = 0
    restarted: int = 0
    """Runs that were not their job's first."""
    faults: int = 0
    energy_j: float = 0.0
    ratios: List[int] = field(default_factory=lambda: [0] * (len(RATIO_BOUNDS) + 1))
    """Estimate ÷ peak, each bucket by itself; the last one is for all above."""
    ratio_sum: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one run that has ended, by its record."""
        state = _state(record)
        self.ended[state] = self.ended.get(state, 0) + 1
        self.out_of_memory += ran_out_of_memory(record)
        self.restarted += bool(record.get("restarts"))
        self.faults += not verdicts.FAULTS.isdisjoint(record.get("hints") or ())
        self.energy_j += _number(record.get("energy_j")) or 0.0
        estimate, peak = _number(record.get("estimate_mib")), _number(record.get("peak_mib"))
        if estimate and peak:
            ratio = estimate / peak
            place = next((n for n, bound in enumerate(RATIO_BOUNDS) if ratio <= bound), len(RATIO_BOUNDS))
            self.ratios[place] += 1
            self.ratio_sum += ratio

    def save(self, path: Path) -> None:
        """For the next sampler."""
        write_json(path, {"schema": SCHEMA, **vars(self)}, mode=0o600)


def load_tally(path: Path) -> Tally:
    """The counts of the samplers before; a file that is no such thing is a fresh start."""
    table = read_json(path)
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        return Tally()
    try:
        tally = Tally(**{key: value for key, value in table.items() if key != "schema"})
        return tally if len(tally.ratios) == len(RATIO_BOUNDS) + 1 else Tally()
    except TypeError:
        return Tally()


def ran_out_of_memory(record: Mapping[str, Any]) -> bool:
    """What was made of its end, where somebody judged; else whether it failed close to its limit."""
    verdict = record.get("verdict")
    return verdicts.ran_out_of_memory(verdict if isinstance(verdict, str) else "", record.get("hints") or ())


def _state(record: Mapping[str, Any]) -> str:
    """Slurm's word, or what the exit code says where Slurm said nothing: a label, so of few values."""
    state = record.get("state")
    if isinstance(state, str) and state.replace("_", "").isalpha() and state.isascii():
        return state.lower()[:_LONGEST_STATE]
    if record.get("exit_code") is None and record.get("signal") is None:
        return "unknown"
    return "failed" if record.get("exit_code") or record.get("signal") else "completed"


def _number(value: Any) -> Optional[float]:
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
