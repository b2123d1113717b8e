"""Score traced scripts against their runs on the GPU.

    python -m lab.scripts.score rows.jsonl [more.jsonl ...] [--gpu h200] [--as-traced]
        [--blind [--later]]

Traces and runs may lie in different files: rows of one name are put together.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Optional, Sequence

from lab.ground_truth import open_text
from lab.places import DATA
from slurm_gpumem import estimate
from slurm_gpumem.units import MIB, ceil_div

_ON_THE_CPU = 64 << 20
_NEVER_TRAINED = 1 << 30
"""A run that ended with an error and took less than this had not begun: little more than a context."""
ROWS = DATA / "scripts" / "rows.jsonl.gz"
BLIND = ROWS.with_name("blind.jsonl.gz")
LATER = ROWS.with_name("blind-later.jsonl.gz")


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.scripts.score", description=__doc__)
    parser.add_argument("rows", type=Path, nargs="*", default=[ROWS], help="default: the committed ones")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--blind", action="store_true", help="the blind list's rows instead")
    parser.add_argument("--later", action="store_true", help="with --blind: as traced again since")
    parser.add_argument("--as-traced", action="store_true", help="estimates as made by the trace's program")
    args = parser.parse_args(argv)
    rows: Dict[str, Dict[str, Any]] = {}
    paths = [BLIND, *([LATER] if args.later else [])] if args.blind else args.rows
    for line in (line for path in paths for line in _lines(path)):
        row = json.loads(line)
        rows.setdefault(row["name"], {}).update(row)  # traced and measured apart, or together
    print("\n".join(lines(list(rows.values()), args.gpu, args.as_traced)))
    return 0


def _lines(path: Path) -> List[str]:
    with open_text(path) as file:
        return file.read().splitlines()


def lines(rows: Sequence[Dict[str, Any]], gpu: str, as_traced: bool = False) -> List[str]:
    """The table and its sums; `as_traced`: with the estimates that were noted before the runs."""
    found = ["script                          need  traced  error  request  reserved error    s  phases seen"]
    errors: List[float] = []
    needs: List[int] = []
    requests: List[int] = []
    silent: List[str] = []
    failed: List[str] = []
    failed_alone: List[str] = []
    seconds: List[float] = []
    beyond: List[float] = []
    for row in sorted(rows, key=lambda row: str(row["name"])):
        if row.get("process_bytes", 0) < _ON_THE_CPU:
            continue  # failed by itself, or never used the GPU
        ended = row["run_code"] not in (0, None)
        if ended and ("summary" not in row or row["process_bytes"] < _NEVER_TRAINED):
            failed_alone.append(str(row["name"]))
            continue
        if "summary" not in row:
            failed.append(str(row["name"]))
            continue
        made = estimate(row["summary"], gpu=gpu)
        if as_traced:
            made = replace(made, peak_mib=row["peak_mib"], request_mib=row["request_mib"])
        reserved = round(row["reserved_bytes"] / MIB)
        # Workspaces that cuDNN tries for a moment are over between two looks at the process.
        need = max(round(row["process_bytes"] / MIB), reserved + made.parts["context"])
        traced = made.peak_mib - made.parts["context"]
        errors.append(made.peak_mib / need - 1)
        needs.append(need)
        requests.append(made.request_mib)
        if made.request_mib < need and not made.warnings:
            silent.append(str(row["name"]))
        seconds.append(float(row["trace_seconds"]))
        if row.get("start_seconds"):
            beyond.append(max(0.0, seconds[-1] - row["start_seconds"]))
        phases = [name for name in row["trace_facts"]["phases"] if name in ("evaluate", "checkpoint")]
        found.append(
            f"{row['name']:<29}{need:>7}{made.peak_mib:>8}{100 * errors[-1]:>+6.1f}%{made.request_mib:>8}"
            f"{reserved:>9}{100 * (traced / max(1, reserved) - 1):>+6.1f}%{seconds[-1]:>6.1f}  "
            + " ".join(phases)
        )
    if not needs:
        return [*found, "no script was both traced and run", _traced_only(rows)]
    sizes = sorted(abs(error) for error in errors)
    below = sum(request < need for request, need in zip(requests, needs))
    wide = [request / need for request, need in zip(requests, needs)]
    exact = sum(ceil_div(r, 1024) == ceil_div(n, 1024) for r, n in zip(requests, needs))
    found += [
        f"{len(needs)} scripts: median {100 * median(sizes):.1f} %, "
        f"P90 {100 * sizes[int(0.9 * len(sizes))]:.1f} %; "
        f"request below need {below} ({100 * below / len(needs):.1f} %), without a warning {len(silent)}"
        + (f" ({', '.join(silent)}); " if silent else "; ")
        + f"sum of requests / sum of needs {sum(requests) / sum(needs):.2f}; "
        f"> 1.5 x {sum(w > 1.5 for w in wide)}, > 2 x {sum(w > 2 for w in wide)}; shards exact {exact}",
        f"not traced: {len(failed)} of {len(failed) + len(needs)} ({', '.join(failed) or 'none'}); "
        f"time to trace: median {median(seconds):.1f} s"
        + (
            f", beyond the script's own start {median(beyond):.1f} s ({len(beyond)} scripts)"
            if beyond
            else ""
        )
        + (f"; left out, ended with an error on the GPU: {', '.join(failed_alone)}" if failed_alone else ""),
    ]
    return found


def _traced_only(rows: Sequence[Dict[str, Any]]) -> str:
    """Of rows that were not measured: how many were traced, and how long that took."""
    traced = [row for row in rows if "summary" in row]
    failed = sorted(str(row["name"]) for row in rows if "trace_error" in row and "summary" not in row)
    said = f"traced: {len(traced)} of {len(traced) + len(failed)} (not: {', '.join(failed) or 'none'})"
    if not traced:
        return said
    onward = [row["trace_seconds"] - row["trace_first_step"] for row in traced if row.get("trace_first_step")]
    after = f", {median(onward):.1f} s of it after the first optimizer step" if onward else ""
    return f"{said}; time to trace: median {median(row['trace_seconds'] for row in traced):.1f} s{after}"


if __name__ == "__main__":
    raise SystemExit(main())
