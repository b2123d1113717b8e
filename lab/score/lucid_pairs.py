"""Lucid's public table of 1,388 pairs of training processes on one RTX 3090, beside what the model predicts.

Of each job alone the table has the utilization that nvidia-smi shows (time with any kernel on the GPU) and
its samples per second; of each pair, the share of its speed that each job kept. As far as Lucid's scripts
show the processes ran without MPS, so they took turns; what they would do side by side is printed as well.
Utilization becomes SM activity by the fitted relation of the two; occupancy and DRAM activity are taken for
usual.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from lab.shared_speeds import predicted_speeds, usual_load
from slurm_gpumem.errors import UsageError
from slurm_gpumem.utilization.interference import packaged
from slurm_gpumem.utilization.sets import SHARED, TIMESLICE

PAIRS, ALONE = Path("data/colocate_info.csv"), Path("analyzer/single_data.csv")
"""In the folder `simulation` of its repository."""
GROUPS = ((0.0, 0.6), (0.6, 0.9), (0.9, 1.2), (1.2, 1.5), (1.5, 2.01), (0.0, 2.01))
"""Of the sum of both jobs' utilization."""
Key = Tuple[str, ...]


class LucidJob(NamedTuple):
    """A job alone."""

    busy: float
    step: float


class LucidPair(NamedTuple):
    """Two jobs, and the share of its speed that each kept."""

    jobs: Tuple[LucidJob, LucidJob]
    kept: Tuple[float, float]

    @property
    def busy(self) -> float:
        """Both jobs' utilization added up."""
        return self.jobs[0].busy + self.jobs[1].busy


def read_pairs(folder: Path) -> List[LucidPair]:
    """Every pair whose jobs were measured alone; UsageError where the tables are not as expected."""
    try:
        alone: Dict[Key, LucidJob] = {}
        for row in _rows(folder / ALONE):
            key = tuple(row[name] for name in ("model", "dataset", "batchsize", "amp"))
            alone[key] = LucidJob(float(row["gpu_util"]) / 100, float(row["batchsize"]) / float(row["speed"]))
        found = []
        for row in _rows(folder / PAIRS):
            first, second = (
                alone.get(tuple(row[f"{name}{place}"] for name in ("model", "dataset", "batchsize", "amp")))
                for place in (1, 2)
            )
            if first and second:
                found.append(LucidPair((first, second), (float(row["speed1"]), float(row["speed2"]))))
    except (OSError, KeyError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{folder}: not the folder simulation of Lucid's repository: {error!r}") from None
    return found


def predicted(pair: LucidPair, way: str) -> List[float]:
    """The speeds that the model says from utilization alone."""
    turns = packaged().turns
    loads = [usual_load(turns.active_at(min(1.0, job.busy)), job.step) for job in pair.jobs]
    return predicted_speeds(way, loads, ["0", "1"])


def lucid_lines(pairs: Sequence[LucidPair]) -> List[str]:
    """The table: work of a pair and the error of each job's speed, by how busy both keep a GPU."""
    lines = [
        f"{'Lucid, RTX 3090, utilization of both':<36} pairs  measured   in turns: work  each job   "
        "side by side: work  each job"
    ]
    for low, high in GROUPS:
        chosen = [pair for pair in pairs if low <= pair.busy < high]
        if chosen:
            whole = (low, high) == GROUPS[-1]
            label = "all" if whole else f"{low:.0%} to {min(high, 2.0):.0%}"
            measured = _mean([sum(pair.kept) for pair in chosen])
            cells = [_errors(chosen, way) for way in (TIMESLICE, SHARED)]
            lines.append(
                f"{label:<36} {len(chosen):>5}  {measured:>8.2f}   {cells[0]['work']:>14.2f}  "
                f"{cells[0]['each']:>8.3f}   {cells[1]['work']:>18.2f}  {cells[1]['each']:>8.3f}"
            )
    return lines


def _errors(pairs: Sequence[LucidPair], way: str) -> Mapping[str, float]:
    said = [predicted(pair, way) for pair in pairs]
    off = [abs(a - b) for pair, got in zip(pairs, said) for a, b in zip(got, pair.kept)]
    return {"work": _mean([sum(got) for got in said]), "each": _mean(off)}


def _rows(path: Path) -> List[Dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
