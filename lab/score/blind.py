"""Score jobs that no fit and no rule has seen, as a user's estimate answers for them.

    python -m lab.score.blind ROWS
    python -m lab.score.blind DIR [--traces CACHE]
    python -m lab.score.blind DIR --estimator horus

ROWS is the file in which `lab.scripts.run` measured, traced and described jobs. DIR is one of the older
checks: measured runs and their texts (rows*, summaries*, about*), CACHE what `trace_rows` wrote for them.
Every answer is the product's own, from one text or one trace, with nothing left out of its fits: the runs
must not be in them. Where rows have utilization, SM activity and its interval are scored as well.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from lab.command import print_lines
from lab.ground_truth import MeasuredRun, load_ground_truth
from lab.rows import read_rows
from lab.score import figures
from slurm_gpumem.api import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.types import Estimate

TRACE = "trace"
KINDS = {
    "torchinfo_deep": "torchinfo depth 20",
    "torchinfo": "torchinfo default",
    "torchsummary": "torchsummary",
    "print": "print(model)",
    TRACE: "trace",
}
"""Kinds of input that people have, as the table names them."""
_GROUPS = ("all", "library", "hand-written")
_SHARD_MIB = 1024
_LEGEND = """\
median, P90: absolute error of the peak; below: requests under the need, and how many of them had no warning;
sum: requests over needs; > 1.5, > 2: requests of that many times the need; shards: exact, of 1024 MiB;
failed: no answer. SM activity: mean absolute error in points, and the share of jobs inside the interval;
unknown: jobs whose utilization was measured and is said to be unknown."""


class Answer(NamedTuple):
    """What the product said about one run from one input."""

    run: MeasuredRun
    kind: str
    need_mib: int
    made: Optional[Estimate]
    error: str = ""

    @property
    def group(self) -> str:
        """Whose code it is."""
        return "hand-written" if self.run.row["source"] in ("own", "repository") else "library"


def answers(folder: Path, traces: Optional[Path], estimator: str = "auto") -> List[Answer]:
    """Every run from every input it has; `estimator` answers for the texts."""
    truth = load_ground_truth(folder)
    traced = _traced_jobs(folder) if folder.is_file() else None
    found = []
    for run in truth.runs:
        need = run.process_mib
        if need is None:
            continue
        for kind in KINDS:
            if kind == TRACE and traced is not None:
                text = traced.get(run.key)
                missing = Answer(run, TRACE, need, None, "not traced")
                found.append(_answer(run, TRACE, need, text) if text else missing)
            elif kind == TRACE:
                found += [_from_trace(run, need, traces)] if traces else []
            elif kind in truth.texts[run.summary]:
                text = truth.texts[run.summary][kind].rstrip("\n") + "\n"
                found.append(_answer(run, kind, need, text, estimator))
    return found


def _traced_jobs(path: Path) -> Dict[str, str]:
    """Traces by the keys of their jobs."""
    rows = (row for row in read_rows(path) if row["kind"] == "traced" and "trace" in row)
    return {row["key"]: row["trace"] for row in rows}


def _from_trace(run: MeasuredRun, need: int, traces: Path) -> Answer:
    from lab.score.trace_rows import path_of

    path = path_of(traces, run.key)
    if not path.exists():
        return Answer(run, TRACE, need, None, "not traced")
    with gzip.open(path, "rt") as file:
        file.readline()
        return _answer(run, TRACE, need, file.read())


def _answer(run: MeasuredRun, kind: str, need: int, text: str, estimator: str = "auto") -> Answer:
    job = run.job
    stated: Dict[str, Any] = {"batch_size": job.batch_size}
    if kind != TRACE:  # a trace knows its own training
        stated.update(
            optimizer=job.optimizer,
            precision=job.precision,
            grad_accumulation=job.grad_accumulation,
            checkpointing=job.checkpointing,
            channels_last=job.channels_last,
        )
    try:
        return Answer(
            run, kind, need, estimate(text, gpu=run.gpu.entry or "h200", estimator=estimator, **stated)
        )
    except GpumemError as error:
        return Answer(run, kind, need, None, str(error).splitlines()[0])


# -- Tables --------------------------------------------------------------------------------------


def lines(found: Sequence[Answer]) -> List[str]:
    """Both tables and what failed."""
    table = [
        "input               code           runs  median     P90  below (silent)   sum  > 1.5   > 2 shards"
    ]
    table[0] += "  failed"
    busy = [
        "",
        "input               code           jobs  unknown  SM activity off  inside interval"
        "  step off (median)  inside",
    ]
    for kind, title in KINDS.items():
        for group in _GROUPS:
            own = [one for one in found if one.kind == kind and group in ("all", one.group)]
            if own:
                table.append(f"{title:<20}{group:<13}{memory_cells(own)}")
                cells = utilization_cells(own)
                busy += [f"{title:<20}{group:<13}{cells}"] if cells else []
    failed = Counter((KINDS[one.kind], one.error) for one in found if one.made is None)
    said = [f"  {count} x {kind}: {error}" for (kind, error), count in failed.most_common()]
    small = [
        f"  {one.made.request_mib:>6} of {one.need_mib:>6} MiB  {KINDS[one.kind]}, {one.run.key}"
        + ("" if one.made.warnings else "  (no warning)")
        for one in found
        if one.made is not None and one.made.request_mib < one.need_mib
    ]
    return [
        *table,
        *(busy if len(busy) > 2 else []),
        *(["", "no answer:", *said] if said else []),
        *(["", "below the need:", *small] if small else []),
        "",
        *_LEGEND.splitlines(),
    ]


def memory_cells(own: Sequence[Answer]) -> str:
    """One line's figures."""
    made = [
        figures.Answer(one.need_mib, one.made.peak_mib, one.made.request_mib, bool(one.made.warnings))
        for one in own
        if one.made is not None
    ]
    failed = len(own) - len(made)
    if not made:
        return f"{0:>6}{'no answer':>60}{failed:>8}"
    one = figures.figures(made, _SHARD_MIB)
    silent = round(one.under_unwarned * one.count)
    return (
        f"{one.count:>6}{100 * one.median_error:>6.1f} %{100 * one.p90_error:>6.1f} %"
        f"{100 * one.under_request:>6.1f} % ({silent:>2})  {one.capacity:>8.2f}"
        f"{100 * one.over_half:>5.1f} %{100 * one.over_twice:>5.1f} %"
        f"{100 * one.shards_exact:>6.0f} %{failed:>8}"
    )


def utilization_cells(own: Sequence[Answer]) -> str:
    """SM activity and step time where both were measured and predicted; "" where none was."""
    off: List[float] = []
    steps: List[float] = []
    inside = asked = inside_step = 0
    for one in own:
        real: Mapping[str, Any] = one.run.row.get("utilization") or {}
        got = one.made.utilization if one.made is not None else None
        if not real.get("step_seconds"):
            continue
        asked += 1
        if got is None or not got.is_known:
            continue
        off.append(abs(got.sm_active - real["sm_active"]))
        steps.append(abs(got.step_seconds / real["step_seconds"] - 1))
        low, high = got.intervals["sm_active"]
        inside += low <= real["sm_active"] <= high
        shortest, longest = got.intervals["step_seconds"]
        inside_step += shortest <= real["step_seconds"] <= longest
    if not off:
        return ""
    count, half = len(off), figures.quantile(sorted(steps), 0.5)
    return (
        f"{count:>6}{asked - count:>9}{sum(off) / count:>10.1f} points{100 * inside / count:>15.0f} %"
        f"{100 * half:>17.0f} %{100 * inside_step / count:>7.0f} %"
    )


def main(argv: Optional[List[str]] = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.score.blind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="ROWS|DIR")
    parser.add_argument("--traces", type=Path, metavar="CACHE", help="a folder that trace_rows filled")
    parser.add_argument("--estimator", default="auto", metavar="NAME", help="another for texts, like horus")
    options = parser.parse_args(argv)
    return print_lines(lambda: lines(answers(options.folder, options.traces, options.estimator)))


if __name__ == "__main__":
    sys.exit(main())
