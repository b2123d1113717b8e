"""Pairs of jobs that others measured on one GPU, beside ours: the work of a pair, relative to one job alone.

    python -m lab.score.other_pairs [--gavel FILE] [--lucid FOLDER]

Gavel's file is scheduler/simulation_throughputs.json of its public repository: steps per second of each job
alone ("null") and of every pair, by GPU type. What does not fit stands there as 0 and is left out. Lucid's
folder is simulation/ of its public repository (lucid_pairs.py).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lab.command import exit_code
from lab.score.lucid_pairs import lucid_lines, read_pairs
from lab.shared_speeds import load_from, predicted_speeds
from lab.utilization_runs import load_sets, way_of
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.figures import percentile

_ON_ONE_GPU = ", 1)"
_ALONE = "null"
_PARTS = (0.1, 0.25, 0.5, 0.75, 0.9)


def pair_work(table: Mapping[str, Mapping[str, Any]]) -> List[float]:
    """Of every pair on one GPU that fits, sorted."""
    jobs = [name for name in table if name.endswith(_ON_ONE_GPU) and table[name].get(_ALONE)]
    found: List[float] = []
    for place, first in enumerate(jobs):
        for second in jobs[place:]:
            rates = table[first].get(second)
            if rates and min(rates) > 0:
                found.append(rates[0] / table[first][_ALONE] + rates[1] / table[second][_ALONE])
    return sorted(found)


def our_pairs(mode: str) -> Dict[str, List[float]]:
    """Measured and predicted work of the pairs among our sets, sorted."""
    pairs = [one for one in load_sets() if one.mode == mode and len(one.jobs) == 2]
    said = [predicted_speeds(way_of(one), list(map(load_from, one.solo)), ["one", "one"]) for one in pairs]
    return {"measured": sorted(sum(one.speeds) for one in pairs), "predicted": sorted(map(sum, said))}


def main(argv: Optional[List[str]] = None) -> int:
    """Print quantiles of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gavel", type=Path, metavar="FILE", help="Gavel's table, where it is at hand")
    parser.add_argument("--lucid", type=Path, metavar="FOLDER", help="Lucid's folder, where it is at hand")

    def body() -> int:
        options = parser.parse_args(argv)
        _print(options.gavel)
        if options.lucid is not None:
            print("", *lucid_lines(read_pairs(options.lucid)), sep="\n")
        return 0

    return exit_code(body)


def _print(path: Optional[Path]) -> None:
    print(f"{'work of a pair':<33} {'pairs':>5}  " + "  ".join(f"{part:>5.0%}" for part in _PARTS))
    if path is not None:
        try:
            tables = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from None
        for gpu, table in tables.items():
            if not gpu.endswith("_unconsolidated"):
                _line(f"Gavel, {gpu}", pair_work(table))
    for mode in ("mps", "timeslice"):
        for name, values in our_pairs(mode).items():
            _line(f"ours, H200, {mode}, {name}", values)


def _line(label: str, values: Sequence[float]) -> None:
    shown = "  ".join(f"{percentile(values, part):>5.2f}" for part in _PARTS)
    print(f"{label:<33} {len(values):>5}  {shown}")


if __name__ == "__main__":
    raise SystemExit(main())
