"""Compare traces of measured runs with the measurements.

    python -m lab.score.trace_score [--cache DIR] [--write]

The folder is what `trace_rows` filled. `--write` keeps each run's figures in
lab/data/traces/figures.jsonl.gz, from which `lab.fit.margins` fits the margin of traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.ground_truth import load_ground_truth_rows
from lab.places import BLIND_CHECKS, GROUND_TRUTH, HANDWRITTEN, TRACE_FIGURES, shown
from lab.rows import Row
from lab.score.figures import quantile
from lab.score.trace_figures import Traced, load_figures
from lab.score.trace_rows import kept_trace
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.units import MIB

OTHER_ALLOCATIONS = ("expandable_segments", "cudnn_benchmark", "compile", "mps")
"""Toggles under which memory follows other rules than a trace does, or its context is another."""
FOLDERS = (GROUND_TRUTH, HANDWRITTEN, *BLIND_CHECKS)
"""All measured runs; blind checks were scored before they are used here."""
WORST = 15
"""Runs that are listed by name."""


def measured_runs(folders: Sequence[Path] = FOLDERS) -> Dict[str, Row]:
    """The runs that count, by their keys."""
    return {row["key"]: row for folder in folders for row in load_ground_truth_rows(folder) if good(row)}


def traced(cache: Path, row: Row) -> Optional[Traced]:
    """A run's figures by its trace, replayed now; None where the folder has no trace of it."""
    kept = kept_trace(cache, row["key"])
    if kept is None:
        return None
    summary, beside = kept
    trace = summary.trace
    assert trace is not None
    gpu = find_gpu("h200")
    timeline = replay(trace, None, gpu)
    return Traced(
        key=row["key"],
        model=row["model"],
        allocated_bytes=timeline.stats.peak_allocated,
        reserved_bytes=timeline.stats.peak_reserved,
        fixed_bytes=sum(timeline.at_peak.get(name, 0) for name in ("weights", "buffers", "optimizer")),
        context_mib=gpu.context_for(conv=trace.uses_conv, matmul=trace.uses_matmul),
        seconds=beside["cpu_seconds"],
    )


def report(pairs: Sequence[Tuple[Traced, Row]]) -> List[str]:
    """Errors of allocated bytes and of the process, with the worst runs by name."""
    lines = []
    for title, error in (("allocated", _allocated_error), ("process", _process_error)):
        errors = [(error(found, row), row["key"]) for found, row in pairs]
        sizes = sorted(abs(value) for value, _ in errors)
        lines.append(
            f"{title}: {len(sizes)} runs, median {quantile(sizes, 0.5):.2%}, P90 {quantile(sizes, 0.9):.2%}"
        )
        farthest = sorted(errors, key=lambda e: -abs(e[0]))[:WORST]
        lines += [f"  {value:+8.2%}  {key}" for value, key in farthest]
    seconds = sorted(found.seconds for found, _ in pairs)
    half, most = quantile(seconds, 0.5), quantile(seconds, 0.9)
    lines.append(f"CPU time of a trace: median {half:.1f} s, P90 {most:.1f} s")
    return lines


def _allocated_error(found: Traced, row: Row) -> float:
    return found.allocated_bytes / float(row["allocated_bytes"]) - 1


def _process_error(found: Traced, row: Row) -> float:
    real = row.get("process_bytes") or row["reserved_bytes"] + found.context_mib * MIB
    return (found.reserved_bytes + found.context_mib * MIB) / float(real) - 1


def real_mib(found: Traced, row: Row) -> float:
    """What the process took, with the reference context."""
    real = row.get("process_bytes") or row["reserved_bytes"] + found.context_mib * MIB
    return float(real) / MIB - found.moved_mib


# -- Command -------------------------------------------------------------------------------------


def main(argv: Optional[List[str]] = None) -> int:
    """Score, and write if asked to."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.trace_score", description=__doc__)
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of traces; else the kept figures")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"measured runs (all: {', '.join(shown(f) for f in FOLDERS)})",
    )
    parser.add_argument("--write", action="store_true")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(asked: argparse.Namespace) -> int:
    rows = measured_runs((asked.data,) if asked.data else FOLDERS)
    kept = load_figures()
    if asked.cache:
        from joblib import Parallel, delayed

        replayed = Parallel(n_jobs=-1)(delayed(traced)(asked.cache, row) for row in rows.values())
        found = [item for item in replayed if item is not None]
    else:
        found = list(kept.values())
    pairs = [(item, rows[item.key]) for item in found if item.key in rows]
    if asked.write:
        merged = {**kept, **{item.key: item for item in found}}
        lines = [json.dumps(asdict(merged[key]), separators=(",", ":")) for key in sorted(merged)]
        TRACE_FIGURES.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    print("\n".join(report(pairs)) if pairs else "no traced runs")
    return 0


def good(row: Row) -> bool:
    """A run that went well and trained: scalers that skipped every step leave no optimizer state."""
    stateful = row["optimizer"] != "sgd"
    skipped = row["precision"] == "amp-fp16" and stateful and not row.get("optimizer_tensors", 1)
    toggled = any(row.get("toggles", {}).get(name) for name in OTHER_ALLOCATIONS)
    return not row.get("error") and bool(row.get("reserved_bytes")) and not skipped and not toggled


if __name__ == "__main__":
    sys.exit(main())
