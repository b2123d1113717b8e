"""Compare what cuDNN takes when it tries algorithms with the runs that were measured with cudnn.benchmark.

    python -m lab.score.trace_rows --part all --match cudnn_benchmark --cache DIR
    python -m lab.score.benchmark_tries --cache DIR

The first command traces the models of these runs, the second replays the traces without and with tries.
Scripts that set it are scored by `lab.scripts.score`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from lab.command import exit_code
from lab.ground_truth import load_ground_truth_rows
from lab.score.accuracy import quantile
from lab.score.trace_rows import kept_trace
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import replay


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    prog = "python -m lab.score.benchmark_tries"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="what trace_rows filled")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options.cache))


def _run(cache: Path) -> int:
    rows = [row for row in load_ground_truth_rows() if _wanted(row)]
    traces = {row["key"]: kept[0].trace for row in rows if (kept := kept_trace(cache, row["key"]))}
    found = {row["key"]: (row, trace) for row in rows if (trace := traces.get(row["key"])) is not None}
    print(f"{len(found)} of {len(rows)} runs traced; error of what is reserved")
    print("without tries  with tries")
    both: List[List[float]] = [[], []]
    gpu = find_gpu("h200")
    for key, (row, trace) in sorted(found.items()):
        timeline = replay(trace._replace(benchmark=True), None, gpu)
        for errors, reserved in zip(both, (timeline.stats.peak_reserved, timeline.autotuned)):
            errors.append(reserved / row["reserved_bytes"] - 1)
        print(f"{both[0][-1]:+13.1%} {both[1][-1]:+11.1%}  {key}")
    for name, errors in zip(("without tries", "with tries"), both):
        sizes = sorted(map(abs, errors))
        if sizes:
            print(f"{name}: median {quantile(sizes, 0.5):.1%}, P90 {quantile(sizes, 0.9):.1%}")
    return 0


def _wanted(row: Dict[str, Any]) -> bool:
    tried = row.get("toggles", {}).get("cudnn_benchmark")
    return bool(tried and row.get("reserved_bytes")) and not row.get("error")


if __name__ == "__main__":
    sys.exit(main())
