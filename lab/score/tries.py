"""Requests of networks under `torch.backends.cudnn.benchmark`, with and without what cuDNN only tries.

    python -m lab.score.tries

Without a limit the need is what the process takes while cuDNN tries algorithms. Under a limit it is the
smallest one under which steps are within 5 % as fast as without. Where no limit was too small, nobody knows
it: "~" marks what steps take without a limit once every algorithm is chosen, or a smaller limit that held.
"""

from __future__ import annotations

import json
from typing import Dict, List, NamedTuple, Sequence, Tuple

from lab.command import print_lines
from lab.places import DATA
from lab.rows import Row, read_rows, rows_in
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.resolve import resolve_job
from slurm_gpumem.estimators.traced.estimator import estimate_trace
from slurm_gpumem.estimators.training_job import StatedTraining
from slurm_gpumem.summaries.parsers.own import parse

FOLDER = DATA / "tries"
TRACES = FOLDER / "traces.jsonl.xz"
AS_FAST = 0.95


class Scored(NamedTuple):
    """A network's needs and requests, MiB of the whole process."""

    network: str
    tried: int
    """Without a limit: with what cuDNN tries."""
    needed: int
    """Under one,"""
    searched: bool
    """... and whether a smaller one was too small."""
    speed: float
    """At the request without tries, against that without a limit."""
    with_tries: int
    without_tries: int


def requests() -> Dict[str, Tuple[int, int]]:
    """By network: the request on an H200 with tries and without."""
    gpu, found = find_gpu("h200"), {}
    for row in read_rows(TRACES):
        resolved = resolve_job(parse(json.dumps(row["summary"]), origin=row["network"]), StatedTraining())
        trace = resolved.summary.trace
        if trace is None:
            raise ValueError(f"{row['network']}: no trace")
        both = (estimate_trace(trace._replace(benchmark=tries), resolved.job, gpu) for tries in (True, False))
        with_tries, without = (one.request_mib for one in both)
        found[row["network"]] = (with_tries, without)
    return found


def scored(rows: Sequence[Row], asked: Dict[str, Tuple[int, int]]) -> List[Scored]:
    """The networks that were measured at their request."""
    found = []
    for network, (with_tries, without) in asked.items():
        mine = [row for row in rows if row["network"] == network and row["benchmark"]]
        free = next((row for row in mine if row["limit_mib"] is None and "speed" in row), None)
        at_limits = [row for row in mine if row["limit_mib"] and row["method"] == "mps"]
        if free is None or not at_limits:
            continue
        context = free["process_mib"] - free["reserved_mib"]
        fast = [row["limit_mib"] for row in at_limits if row.get("speed", 0) >= AS_FAST * free["speed"]]
        slow = [row["limit_mib"] for row in at_limits if row["limit_mib"] not in fast]
        tried = free["peak_reserved_mib"] + context
        enough = [limit for limit in fast if limit > max(slow, default=0)]
        if not slow:
            enough.append(free["steady_reserved_mib"] + context)
        nearest = min(at_limits, key=lambda row: abs(row["limit_mib"] - without))
        found.append(
            Scored(
                network,
                tried,
                min(enough, default=tried),
                bool(slow),
                nearest.get("speed", 0) / free["speed"],
                with_tries,
                without,
            )
        )
    return found


def table(found: Sequence[Scored]) -> List[str]:
    """A line for each network, and the sums."""
    lines = [
        "                    no limit: need, request with tries | limit: need, request without, speed there",
    ]
    for one in found:
        free, limited = one.with_tries / one.tried, one.without_tries / one.needed
        mark = "" if one.searched else "~"
        lines.append(
            f"{one.network:<16} {one.tried:>12,} {one.with_tries:>12,} {free:>7.2f}  | "
            f"{mark:>2}{one.needed:>7,} {one.without_tries:>10,} {limited:>6.2f} {one.speed:>8.3f}"
        )
    for name, pairs in (
        ("with tries, no limit", [(one.with_tries, one.tried) for one in found]),
        ("without tries, no limit", [(one.without_tries, one.tried) for one in found]),
        ("with tries, limit", [(one.with_tries, one.needed) for one in found]),
        ("without tries, limit", [(one.without_tries, one.needed) for one in found]),
    ):
        below = sum(request < need for request, need in pairs)
        total = sum(request for request, _ in pairs) / sum(need for _, need in pairs)
        worst = max(request / need for request, need in pairs)
        lines.append(f"{name:<24} {below} of {len(pairs)} below need, sum {total:.2f}, largest {worst:.2f}")
    return lines


def measured() -> List[Row]:
    """The rows of all runs that are kept, the earliest first."""
    return list(rows_in(FOLDER, "rows-"))


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: table(scored(measured(), requests()))))
