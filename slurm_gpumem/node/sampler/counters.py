"""Counts of the jobs that have ended on this node, kept over the sampler's own ends and starts.

They are what a time series needs and a record cannot give: numbers that only grow. They live beside the
node's other volatile state and start from 0 when the node does, as Prometheus expects of a counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List

from slurm_gpumem.files import read_json, write_json
from slurm_gpumem.formats import verdicts
from slurm_gpumem.formats.job_record import JobRecord

SCHEMA = "gpumem-counters/1"
RATIO_BOUNDS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Upper bounds of the buckets of estimate ÷ peak; up to 1 the estimate was too low."""


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

    def add(self, record: JobRecord) -> None:
        """Count one run that has ended, by its record."""
        state = record.known_state.lower()
        self.ended[state] = self.ended.get(state, 0) + 1
        self.out_of_memory += record.out_of_memory
        self.restarted += record.restarts > 0
        self.faults += not verdicts.FAULTS.isdisjoint(record.hints)
        self.energy_j += record.measured.energy_j or 0.0
        estimate, peak = record.claimed.estimate_mib, record.measured.peak_mib
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
