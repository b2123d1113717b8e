"""The utilization and interference tables of `make accuracy`."""

from __future__ import annotations

import gzip
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lab.fit.folds import is_hand_written
from lab.fit.utilization_rows import rows_of, rows_of_traces
from lab.ground_truth import TOOLS
from lab.places import GPUUTILNET, SETS, TRACE_KERNELS, shown
from lab.score import sets as set_accuracy
from lab.score.gpuutilnet_table import (
    BUSY,
    METRICS,
    TABLE,
    class_of,
    dataset_of,
)
from lab.score.utilization import (
    Judged,
    again_line,
    class_lines,
    code_lines,
    collection_lines,
    fullest,
    is_library,
    is_real,
    judge,
    load_folds,
    table_lines,
)
from lab.shared_speeds import load_from
from lab.traced_work import load_traced
from lab.utilization_runs import Solo, load_sets, load_solo, load_solo_texts
from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.utilization.interference import JobLoad

_LEGEND = """\
mean, median, P90: absolute error in points of percent (step: in % of it). inside: within the interval.
repeat: deviation between a job's own repeats. unknown: the text shows too little, or the interval says
nothing. Every job by a fit that saw no job of its collection, or, where it is of none, neither its model nor
namesakes; speeds in sets are shares of the speed alone, each job by a fit that saw no set with its model."""


_WAYS = (
    ("MPS, one user", ("mps", "per-user", "shared"), 1),
    ("a server for both users, two users", ("shared",), 2),
    ("a server for each user, two users", ("per-user",), 2),
    ("time slices", ("timeslice",), 1),
)
"""Title, modes of measured sets, number of users."""


def utilization_lines() -> List[str]:
    """All tables; a line that says why where there is nothing to judge."""
    try:
        runs = load_solo()
        folds = load_folds()
        everything = judge(rows_of(runs, load_solo_texts(runs), TOOLS), folds)
    except (UsageError, ConfigError) as error:
        return [f"utilization: {error}"]
    traced = judge(rows_of_traces(runs, load_traced(runs)), folds)
    items = fullest(everything)
    known = [item for item in items if not item.unknown]
    real = [item for item in known if is_library(item.run)]
    groups = {
        "library models": real,
        "drawn at random": [item for item in known if not is_real(item.run)],
        "hand-written": [item for item in known if is_hand_written(item.run.row)],
    }
    lines = [
        f"utilization, {len(runs)} jobs of {len({run.model for run in runs})} models, each alone on the GPU",
        again_line(runs),
        "",
        "collections that were left out as a whole",
        *collection_lines([*everything, *traced]),
        "",
        *code_lines([*everything, *traced]),
        "",
        "from the fullest text, where it shows enough",
        *table_lines(known, {name: members for name, members in groups.items() if members}),
    ]
    lines += ["", "published classes, library models, from a summary", *class_lines(real)]
    lines += ["", *trace_lines(runs, traced)]
    lines += ["", *gpuutilnet_lines(runs)]
    lines += ["", *set_lines(runs, items)]
    return [*lines, "", *_LEGEND.splitlines()]


def trace_lines(runs: Sequence[Solo], items: Sequence[Judged]) -> List[str]:
    """The same tables from a trace, of the jobs that were traced."""
    if not items:
        return [f"from a trace: nothing to judge by ({shown(TRACE_KERNELS)})"]
    real = [item for item in items if is_library(item.run)]
    written = [item for item in items if is_hand_written(item.run.row)]
    groups = {"all": items, "library models": real, "hand-written": written}
    return [
        f"from a trace, {len(items)} of {len(runs)} jobs that could be traced again",
        "",
        *table_lines(items, groups),
        "",
        "published classes, library models, from a trace",
        *class_lines(real),
    ]


def set_lines(runs: Sequence[Solo], items: Sequence[Judged]) -> List[str]:
    """How good speeds in sets are from measured and from predicted metrics, and by the simple rule."""
    sets = load_sets()
    if not sets:
        return [f"interference: no measured sets ({shown(SETS)})"]
    left_out = set_accuracy.load_left_out()
    predicted: Dict[str, JobLoad] = {item.run.key: load_from(item.values) for item in items}

    def load(job: str, _: Mapping[str, float]) -> Optional[JobLoad]:
        return predicted.get(job)

    groups: Dict[str, Sequence[set_accuracy.JudgedSet]] = {}
    for title, mode, users in _WAYS:
        chosen = [one for one in sets if one.mode in mode and (len(set(one.users)) <= 1) == (users == 1)]
        groups[f"{title}, from measured metrics"] = set_accuracy.judge_sets(chosen, left_out)
        groups[f"{title}, from predicted metrics"] = set_accuracy.judge_sets(chosen, left_out, load)
        groups[f"{title}, min(1, 100 / sum of SM activity)"] = set_accuracy.judge_simple(chosen)
    return set_accuracy.figure_lines(groups)


def gpuutilnet_lines(runs: Sequence[Solo]) -> List[str]:
    """The published classifiers on the same jobs, beside their published figures."""
    runs = list({run.key: run for run in reversed(runs)}.values())  # those measured again count once
    try:
        answers: Any = json.loads(gzip.decompress(GPUUTILNET.read_bytes()))["answers"]
    except (OSError, ValueError, KeyError):
        return [f"GPUUtilNet: no answers in {shown(GPUUTILNET)}"]
    lines = [
        "GPUUtilNet trained on our jobs (accuracy, recall of the busy class)",
        "class  data set        n  busy   stratified folds   models kept out   kept out, real   published",
    ]
    for metric, short in METRICS.items():
        for dataset in ("MLP", "CNN", "Transformer"):
            members = [run for run in runs if dataset_of(run.family) == dataset and run.key in answers]
            if not members:
                continue
            real = [run for run in members if is_real(run)]
            known = TABLE[dataset, metric]
            busy = sum(_true(run, metric) == BUSY for run in members)
            lines.append(
                f"{short:<6} {dataset:<12}{len(members):>5}{busy:>6}"
                f"{_scored(members, metric, answers, 0):>19}{_scored(members, metric, answers, 1):>18}"
                f"{_scored(real, metric, answers, 1):>17}     {known.accuracy:.2f}, {known.recall:.2f}"
            )
    return lines


def _true(run: Solo, metric: str) -> int:
    return class_of(dataset_of(run.family), metric, 100 * run.values[metric])


def _scored(runs: Sequence[Solo], metric: str, answers: Mapping[str, Any], which: int) -> str:
    if not runs:
        return "-"
    right = [answers[run.key][metric][which] == _true(run, metric) for run in runs]
    busy = [answers[run.key][metric][which] == BUSY for run in runs if _true(run, metric) == BUSY]
    recall = f"{sum(busy) / len(busy):.2f}" if busy else "-"
    return f"{sum(right) / len(right):.2f}, {recall}"
