"""Compare traces of measured runs with the measurements, and fit the spread of the traced estimate.

    python -m lab.score.trace_score --cache DIR [--part development] [--write] [--fit]

The folder is what `trace_rows` filled. `--write` keeps each run's figures in
lab/data/traces/figures.jsonl.gz, `--fit` fits models/trace-correction.json and its folds on all runs that
the file has.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.fit import folds
from lab.ground_truth import load_ground_truth_rows, part_of
from lab.places import (
    BLIND_CHECKS,
    GROUND_TRUTH,
    HANDWRITTEN,
    MODELS,
    TRACE_FIGURES,
    TRACE_FOLDS,
    shown,
)
from lab.score.accuracy import quantile
from lab.score.trace_figures import Traced, load_figures
from lab.score.trace_rows import kept_trace
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced import learned
from slurm_gpumem.estimators.traced.features import NAMES, features
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.estimators.trees import FORMAT, from_json
from slurm_gpumem.units import MIB

FLOOR = 0.003
"""A need so little above the peak is as good as none; so is one below it."""
FAR = 0.97
"""The spread is what this share of such jobs stays below."""
TREES = 80
OTHER_ALLOCATIONS = ("expandable_segments", "cudnn_benchmark", "compile", "mps")
"""Toggles under which memory follows other rules than a trace does, or its context is another."""
FOLDERS = (GROUND_TRUTH, HANDWRITTEN, *BLIND_CHECKS)
"""All measured runs; blind checks were scored before they are used here."""
Row = Dict[str, Any]


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
    reserved = timeline.stats.peak_reserved
    total = reserved / MIB + learned.REFERENCE_CONTEXT_MIB
    return Traced(
        key=row["key"],
        model=row["model"],
        allocated_bytes=timeline.stats.peak_allocated,
        reserved_bytes=reserved,
        context_mib=gpu.context_for(conv=trace.uses_conv, matmul=trace.uses_matmul),
        seconds=beside["cpu_seconds"],
        features=tuple(round(value, 5) for value in features(trace, timeline, total, None, gpu)),
    )


def report(pairs: Sequence[Tuple[Traced, Row]], worst: int) -> List[str]:
    """Errors of allocated bytes and of the process, with the worst runs by name."""
    lines = []
    for title, error in (("allocated", _allocated_error), ("process", _process_error)):
        errors = [(error(found, row), row["key"]) for found, row in pairs]
        sizes = sorted(abs(value) for value, _ in errors)
        lines.append(
            f"{title}: {len(sizes)} runs, median {quantile(sizes, 0.5):.2%}, P90 {quantile(sizes, 0.9):.2%}"
        )
        farthest = sorted(errors, key=lambda e: -abs(e[0]))[:worst]
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


# -- Fit -----------------------------------------------------------------------------------------


def fit(rows: Sequence[Tuple[Traced, Row]]) -> Dict[str, Any]:
    """The spread; how wide requests are for it is fitted by lab/fit/widths.py."""
    import numpy as np

    from lab.fit.correction import export_trees, fit_trees

    # The last feature is how far a centre moves the peak. Here it stays where the replay has it: trees on so
    # few runs moved held-out peaks away from the truth.
    values = np.array([(*found.features, 0.0) for found, _ in rows])
    size = np.log(np.maximum(np.array([beyond_peak(found, row) for found, row in rows]), FLOOR))
    return {
        "format": FORMAT,
        "features": list(NAMES),
        "center": {"start": 0.0, "trees": []},
        "spread": export_trees(fit_trees(values, size, TREES, quantile=FAR)),
        "card": {
            "data": f"{len(rows)} runs of {len({found.model for found, _ in rows})} models on an H200",
            "command": "python -m lab.score.trace_score --fit",
        },
    }


def beyond_peak(found: Traced, row: Row) -> float:
    """log(need / replayed peak), both with the reference context."""
    from math import log

    real = row.get("process_bytes") or row["reserved_bytes"] + found.context_mib * MIB
    moved = found.context_mib - learned.REFERENCE_CONTEXT_MIB
    total = found.reserved_bytes / MIB + learned.REFERENCE_CONTEXT_MIB
    return log((real / MIB - moved) / total)


def fit_all(rows: Sequence[Tuple[Traced, Row]]) -> None:
    """Write the model of all runs, and one without each fold."""
    whole = fit(rows)
    parts = [fit([r for r in rows if folds.fold_of(r[0].model) != n]) for n in range(folds.FOLDS)]
    for content in (whole, *parts):
        from_json(content, "the new fit", NAMES)
    (MODELS / learned.FILE).write_text(json.dumps(whole, separators=(",", ":")) + "\n")
    packed = gzip.compress(json.dumps(parts, separators=(",", ":")).encode(), mtime=0)
    TRACE_FOLDS.write_bytes(packed)


# -- Command -------------------------------------------------------------------------------------


def main(argv: Optional[List[str]] = None) -> int:
    """Score, and write and fit if asked to."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.trace_score", description=__doc__)
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of traces; else the kept figures")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"measured runs (all: {', '.join(shown(f) for f in FOLDERS)})",
    )
    parser.add_argument("--part", default="development", choices=("development", "hold-out", "all"))
    parser.add_argument("--worst", type=int, default=15, metavar="N")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fit", action="store_true")
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
    if asked.fit and asked.data:
        raise UsageError("--fit takes all measured runs: leave out --data")
    if asked.fit:
        # Generated networks are wilder than what people write.
        fit_all([pair for pair in pairs if folds.kind_of_code(pair[1]) != "generated"])
    wanted = [pair for pair in pairs if asked.part in ("all", part_of(pair[1]["model"]))]
    print("\n".join(report(wanted, asked.worst)) if wanted else "no traced runs")
    return 0


def good(row: Row) -> bool:
    """A run that went well and trained: scalers that skipped every step leave no optimizer state."""
    stateful = row["optimizer"] != "sgd"
    skipped = row["precision"] == "amp-fp16" and stateful and not row.get("optimizer_tensors", 1)
    toggled = any(row.get("toggles", {}).get(name) for name in OTHER_ALLOCATIONS)
    return not row.get("error") and bool(row.get("reserved_bytes")) and not skipped and not toggled


if __name__ == "__main__":
    sys.exit(main())
