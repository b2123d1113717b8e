"""Trace the jobs whose utilization was measured, and keep what their traces tell of a step.

    python -m lab.score.trace_kernels --cache DIR [--write]

Jobs without a trace in the folder are traced first (`trace_rows` has the details). `--write` makes
lab/data/traces/kernels.jsonl.xz of the folder; `make fit-utilization` fits on it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from lab.command import exit_code
from lab.places import TRACE_KERNELS, shown
from lab.score.trace_rows import kept_trace, path_of, trace_missing, unpack_own
from lab.traced_work import kept_lines, line_of, write_traced
from lab.utilization_runs import Solo, load_solo


def main(argv: Optional[List[str]] = None) -> int:
    """Trace what is missing; write the file when asked."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.trace_kernels", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="children at the same time (1)")
    parser.add_argument("--write", action="store_true", help=f"write {shown(TRACE_KERNELS)}")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    options.cache.mkdir(parents=True, exist_ok=True)
    unpack_own(options.cache)
    runs = load_solo()
    missing = [run.row for run in runs if not path_of(options.cache, run.key).exists()]
    missing = [row for row in missing if row["source"] != "own"]
    if missing:
        print(f"{len(runs)} jobs, {len(missing)} to trace", flush=True)
        trace_missing(missing, options.cache, options.jobs)
    if options.write:
        # What the folder has no trace of keeps its line.
        kept = kept_lines(TRACE_KERNELS)
        lines = [_line(run, options.cache) or kept.get(run.key, "") for run in runs]
        write_traced(filter(None, lines), TRACE_KERNELS)
        size = TRACE_KERNELS.stat().st_size
        print(
            f"{sum(map(bool, lines))} of {len(runs)} jobs written to {shown(TRACE_KERNELS)}, {size:,} bytes"
        )
    return 0


def _line(run: Solo, cache: Path) -> str:
    kept = kept_trace(cache, run.key)
    trace = kept[0].trace if kept else None
    if kept is None or trace is None or not trace.kernels:
        return ""
    return line_of(run.key, trace, run.job, kept[0].total_params)


if __name__ == "__main__":
    sys.exit(main())
