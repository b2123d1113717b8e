"""How much more jobs with batches of many lengths reserve than the few traced batches do.

    python -m lab.fit.fragmentation [LIST ...]

Prints the scripts of these lists (default: those that are not blind) whose traces have batches of many
lengths, and what was reserved beside what the trace shows. `GROWTH` of estimators/traced/fragmentation.py is
the largest growth, rounded up to whole percents.
"""

from __future__ import annotations

import argparse
from typing import List, Optional, Sequence

from lab.command import exit_code
from lab.scripts.lists import LISTS
from lab.scripts.score import load, measured_need
from slurm_gpumem import estimate
from slurm_gpumem.estimators.traced.fragmentation import varies
from slurm_gpumem.summaries.reader import read_summary

DEVELOPMENT = ("finetune", "finetune-more", "first", "third", "fourth", "fifth")


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.fragmentation", description=__doc__)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}")
    args = parser.parse_args(argv)
    return exit_code(lambda: _print(args.lists or DEVELOPMENT))


def _print(lists: Sequence[str]) -> int:
    print("script                          need    peak  reserved beyond the trace")
    most = 0.0
    for row in (row for name in lists for row in load([name])):
        summary = read_summary(row["trace"]) if "trace" in row and "process_bytes" in row else None
        if summary is None or summary.trace is None or not varies(summary.trace):
            continue
        made = estimate(summary, gpu="h200")
        context = made.parts["context"]
        need = measured_need(row, context)
        growth = (need - context) / (made.peak_mib - context) - 1
        most = max(most, growth)
        print(f"{row['name']:<28}{need:>8}{made.peak_mib:>8}{100 * growth:>+11.1f} %", flush=True)
    print(f"largest: {100 * most:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
