"""How often a job of the mode `known` would have asked for too little: the next peak against earlier ones.

    python -m lab.known_jobs [remembered.json ...]

Without a file: measured repeats, runs of one key in lab/data by different measuring runs, in their order.
With files that a site's accounting wrote: the scripts in them. No simulated history is scored: in those of
lab/data/simulation a repeated job has the same peak by construction.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from lab.command import print_lines
from lab.places import DATA
from lab.rows import read_rows
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.remembered import request_of_script
from slurm_gpumem.formats.remembered import SCRIPT_MARK
from slurm_gpumem.units import MIB

GROUPS = ((1, 1), (2, 2), (3, 4), (5, None))
"""Numbers of earlier runs, first and last."""

Histories = Sequence[Sequence[int]]
"""Peaks in MiB of each job, the earliest first."""


class Next(NamedTuple):
    """One run that others came before."""

    earlier: int
    request: int
    need: int


def next_runs(histories: Histories) -> Iterator[Next]:
    """Each run but the first of each job, by what the runs before it measured."""
    for peaks in histories:
        for at in range(1, len(peaks)):
            yield Next(at, request_of_script(peaks[:at]), peaks[at])


def lines(histories: Histories) -> Iterator[str]:
    """The table: a line for each number of earlier runs, and one for all."""
    runs = list(next_runs(histories))
    yield f"{'earlier runs':<14}{'next runs':>10}{'below need':>12}{'Σ request / Σ need':>21}"
    for first, last in GROUPS:
        words = str(first) if first == last else f"{first} to {last}" if last else f"{first} or more"
        yield _line(words, [run for run in runs if first <= run.earlier <= (last or run.earlier)])
    yield _line("all", runs)
    spread = sorted(max(peaks) / min(peaks) - 1 for peaks in histories if len(peaks) > 1)
    if spread:
        same = sum(not one for one in spread)
        yield f"{len(spread)} jobs, {same} with the same peak each time; largest difference {spread[-1]:.1%}"


def _line(words: str, runs: Sequence[Next]) -> str:
    if not runs:
        return f"{words:<14}{0:>10}{'-':>12}{'-':>21}"
    below = sum(run.request < run.need for run in runs)
    ratio = sum(run.request for run in runs) / sum(run.need for run in runs)
    return f"{words:<14}{len(runs):>10}{below:>12}{ratio:>21.2f}"


def measured_repeats(folder: Path = DATA) -> List[List[int]]:
    """Peaks of processes by key, in the order of the measuring runs."""
    found: Dict[str, Dict[str, int]] = {}
    for path in sorted(folder.glob("*/rows*.jsonl.gz")):
        for row in read_rows(path):
            if row.get("process_bytes") and row.get("run") and not disturbed(row):
                found.setdefault(row["key"], {})[_when(row["run"])] = row["process_bytes"] // MIB
    return [[peaks[when] for when in sorted(peaks)] for peaks in found.values()]


def disturbed(row: Mapping[str, object]) -> bool:
    """Whether a measured run failed, or others spoiled it."""
    return any(row.get(word) for word in ("error", "oom", "spoiled"))


def _when(run: str) -> str:
    """The time in the name of a measuring run: sets-2026-11-15T05:15:24Z."""
    return run.split("-", 1)[1]


def remembered_scripts(paths: Iterable[Path]) -> List[List[int]]:
    """Peaks of scripts, by GPU type, as the accounting remembers them; a file has the latest first."""
    found = []
    for path in paths:
        try:
            runs = json.loads(path.read_text())["runs"].items()
            of_scripts = [by_gpu for recipe, by_gpu in runs if recipe.startswith(SCRIPT_MARK)]
            found += [list(reversed(peaks)) for by_gpu in of_scripts for peaks in by_gpu.values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: not a file of remembered runs: {error}") from None
    return found


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.known_jobs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="remembered.json")
    files = parser.parse_args(argv).files
    return print_lines(lambda: lines(remembered_scripts(files) if files else measured_repeats()))


if __name__ == "__main__":
    sys.exit(main())
