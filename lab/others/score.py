"""Estimators of other people beside ours on the same measured jobs: `python -m lab.others.score`.

The rows are what each of them said of a job on a CPU, and its seconds, by `lab.others.run`.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from lab.command import print_lines
from lab.ground_truth import GroundTruth, context_mib, summary_of
from lab.others.jobs import chosen_jobs
from lab.places import OTHER_ESTIMATORS
from lab.rows import read_rows
from lab.score.accuracy import Score, held_out_fits, score
from lab.score.figures import figures, quantile
from lab.score.trace_figures import Traced
from slurm_gpumem.estimators.registry import TRACE
from slurm_gpumem.units import MIB

TEXTS = ("corrected", "structural")
NAMES = {
    "trace": "`trace`",
    "corrected": "`corrected`, a text",
    "structural": "`structural`, a text",
    "xmem": "xMem",
    "veritas-est": "VeritasEst, as described",
    "fake-tensors": "FakeTensorMode",
    "mem-tracker": "PyTorch's MemTracker",
    "accelerate": "`accelerate estimate-memory`",
}
HEAD = (
    "| estimator | jobs | median / P90 | below need | Σ request / Σ need | Σ where 5 % are below | seconds |",
    "|---|---|---|---|---|---|---|",
)
Row = Mapping[str, Any]


def stored_rows() -> List[Row]:
    """What each estimator said of each job."""
    return [row for row in read_rows(OTHER_ESTIMATORS) if "key" in row]


def scores_of(rows: Sequence[Row], truth: GroundTruth) -> Dict[str, List[Score]]:
    """By estimator: ours with margins of fits that saw no such model, the others' numbers as they are."""
    ours, _ = score(truth, TEXTS)
    found: Dict[str, List[Score]] = {name: [one for one in ours if one.estimator == name] for name in TEXTS}
    beside = {one.run.key: (one, _context(one, truth)) for one in ours}
    for row in rows:
        if row["key"] in beside and "reserved_bytes" in row:
            one, context = beside[row["key"]]
            found.setdefault(row["tool"], []).append(_scored(row, one, context))
    return found


def _context(one: Score, truth: GroundTruth) -> int:
    return context_mib(one.run, summary_of(truth.texts[one.run.summary][one.format]))


def _scored(row: Row, one: Score, context: int) -> Score:
    if row["tool"] != TRACE:
        peak = round(row["reserved_bytes"] / MIB) + context
        return Score(one.run, row["tool"], one.format, one.real_mib, peak, peak)
    names = ("key", "allocated_bytes", "reserved_bytes", "fixed_bytes", "context_mib")
    figures = Traced(
        model=str(one.run.row["model"]), seconds=row["cpu_seconds"], **{name: row[name] for name in names}
    )
    return held_out_fits().of_trace(one.run, figures, one.format, one.real_mib)


def table(rows: Sequence[Row], truth: GroundTruth) -> List[str]:
    """A line for each estimator."""
    found = scores_of(rows, truth)
    keys = {run.key for run in truth.runs}
    asked = [row for row in rows if row["key"] in keys]
    return [*HEAD, *(_line(name, found.get(name, []), asked) for name in NAMES)]


def _line(name: str, scores: Sequence[Score], rows: Sequence[Row]) -> str:
    if not scores:
        return f"| {NAMES[name]} | not run | | | | | |"
    tool = "text" if name in TEXTS else name
    asked = [row for row in rows if row["tool"] == tool]
    failed = sum("error" in row for row in asked)
    seconds = sorted(row["cpu_seconds"] for row in asked if "cpu_seconds" in row)
    one = figures(scores)
    return (
        f"| {NAMES[name]} | {one.count}{f'; {failed} failed' if failed else ''} "
        f"| {one.median_error * 100:.1f} / {one.p90_error * 100:.1f} % | {one.under_request * 100:.1f} % "
        f"| {one.capacity:.2f} | {_scaled(scores):.2f} | {quantile(seconds, 0.5):.1f} |"
    )


def _scaled(scores: Sequence[Score]) -> float:
    """Σ of the peaks times the factor that leaves one in twenty below its need, by Σ of the needs."""
    factor = quantile(sorted(one.real_mib / one.peak_mib for one in scores), 0.95)
    return factor * sum(one.peak_mib for one in scores) / sum(one.real_mib for one in scores)


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: table(stored_rows(), chosen_jobs())))
