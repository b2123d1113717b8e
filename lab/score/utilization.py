"""How good predicted utilization is on jobs measured alone; each model by a fit that never saw it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lab.fit.folds import COLLECTIONS, collection_of, is_hand_written
from lab.fit.utilization_rows import UtilizationRow
from lab.ground_truth import TOOLS
from lab.places import UTILIZATION_FOLDS
from lab.score.gpuutilnet_table import BUSY, METRICS, TABLE, class_of, dataset_of
from lab.utilization_runs import Solo
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.types import WIDEST_INTERVAL
from slurm_gpumem.utilization.model import TARGETS, UtilizationModel, from_json
from slurm_gpumem.utilization.predict import SUMMARY, TRACE, predict_targets

GENERATED = "synthetic"


class Judged(NamedTuple):
    """One job's prediction by the fit that never saw its model."""

    run: Solo
    tool: str
    source: str
    values: Mapping[str, float]
    """By TARGETS, as `Solo.values`."""
    intervals: Mapping[str, Tuple[float, float]]
    leaning: float
    """SM activity as it is asked whether the job is busy."""
    unknown: bool = False
    """Whether nothing is predicted for such a text, or the interval says nothing; the values are what would
    have been."""


class Line(NamedTuple):
    """Errors of one target over a group of jobs: points (of percent) for shares, a share for step times."""

    jobs: int
    mean: float
    median: float
    p90: float
    inside: float
    """Share of jobs within their interval."""
    noise: float
    """Standard deviation of a job's own repeats, in the same unit."""


class Classes(NamedTuple):
    """The three published classes of a metric."""

    jobs: int
    accuracy: float
    recall: Optional[float]
    """Share of the busy jobs that were found; None when there is none."""
    busy: int


def load_folds(path: Path = UTILIZATION_FOLDS) -> List[UtilizationModel]:
    """One model a fold, each fitted without the models of that fold."""
    try:
        content: List[Any] = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; `make fit-utilization` writes it") from None
    return [from_json(part) for part in content]


def judge(rows: Sequence[UtilizationRow], folds: Sequence[UtilizationModel]) -> List[Judged]:
    """Every job, as seen through each of its texts and its trace, beside what was measured."""
    found: List[Judged] = []
    for row in rows:
        source, model = TRACE if row.tool == TRACE else SUMMARY, folds[row.fold]
        got = predict_targets(row.work, row.seen, row.run.gpu, model.sources[source], model.outside)
        intervals = {name: (got.lows[name], got.highs[name]) for name in TARGETS}
        low, high = intervals["sm_active"]
        unknown = row.unknown or 100 * (high - low) > WIDEST_INTERVAL
        found.append(Judged(row.run, row.tool, source, got.values, intervals, got.busy_activity, unknown))
    return found


def errors(items: Sequence[Judged], target: str) -> Line:
    """The errors of one target; `items` must not be empty."""
    relative = target == "step_seconds"
    off, noise, inside = [], [], 0
    for item in items:
        true, got = item.run.values[target], item.values[target]
        unit = true if relative else 0.01
        off.append(abs(got - true) / unit)
        noise.append(item.run.noise[target] / unit)
        low, high = item.intervals[target]
        inside += low <= true <= high
    off.sort()
    return Line(
        len(off),
        sum(off) / len(off),
        off[len(off) // 2],
        off[min(len(off) - 1, int(0.9 * len(off)))],
        inside / len(off),
        sum(noise) / len(noise),
    )


def classes(items: Sequence[Judged], metric: str) -> Classes:
    """How often the published class is right, and how many of the busy jobs are found."""
    right = busy = found = 0
    for item in items:
        dataset = dataset_of(item.run.family)
        true = class_of(dataset, metric, 100 * item.run.values[metric])
        got = class_of(dataset, metric, 100 * item.values[metric])
        if metric == "sm_active" and class_of(dataset, metric, 100 * item.leaning) == BUSY:
            got = BUSY
        right += true == got
        if true == BUSY:
            busy += 1
            found += got == BUSY
    return Classes(len(items), right / len(items), found / busy if busy else None, busy)


def is_real(run: Solo) -> bool:
    """Whether its model is one that people use, not one drawn at random."""
    return GENERATED not in run.family


def is_library(run: Solo) -> bool:
    """Whether it is such a model, and not one that somebody wrote for a single purpose."""
    return is_real(run) and not is_hand_written(run.row)


def fullest(items: Sequence[Judged]) -> List[Judged]:
    """Each job once, from the text that tells most."""
    found: Dict[str, Judged] = {}
    for item in sorted(items, key=lambda item: TOOLS.index(item.tool)):
        found.setdefault(item.run.key, item)
    return list(found.values())


def table_lines(items: Sequence[Judged], groups: Mapping[str, Sequence[Judged]]) -> List[str]:
    """Errors by target and group, and the published classes, as text."""
    width = max((len(name) for name in groups), default=5)
    lines = [f"{'jobs':<{width}}      n  target          mean  median     P90  inside   repeat"]
    for name, members in groups.items():
        label = name
        for target in TARGETS:
            if not members:
                continue
            line = errors(members, target)
            unit, scale = (" %", 100.0) if target == "step_seconds" else ("  ", 1.0)
            cells = "".join(f"{scale * value:6.1f}{unit}" for value in (line.mean, line.median, line.p90))
            lines.append(
                f"{label:<{width}} {line.jobs:>6}  {target:<13}{cells}{100 * line.inside:6.0f} %"
                f"{scale * line.noise:7.1f}{unit}".rstrip()
            )
            label = ""
    return lines


def code_lines(items: Sequence[Judged]) -> List[str]:
    """By code and input: how many are not answered, and the errors of those that are."""
    lines = [
        "code          input              n  unknown   SM activity: mean  P90  inside    step: mean  inside"
    ]
    for code, written in (("library", False), ("hand-written", True)):
        for tool in (*TOOLS, TRACE):
            group = [item for item in items if item.tool == tool and is_hand_written(item.run.row) == written]
            answered = [item for item in group if not item.unknown]
            if not group:
                continue
            head = f"{code:<13} {tool:<15}{len(group):>5}{1 - len(answered) / len(group):>8.0%}"
            if answered:
                active, step = errors(answered, "sm_active"), errors(answered, "step_seconds")
                head += f"{active.mean:>21.1f}{active.p90:>6.1f}{active.inside:>7.0%}"
                head += f"{step.mean:>13.0%}{step.inside:>7.0%}"
            lines.append(head)
    return lines


def again_line(runs: Sequence[Solo]) -> str:
    """How far apart the same job is in two sessions: what no prediction can be better than."""
    first: Dict[str, Solo] = {}
    off, ratios = [], []
    for run in runs:
        before = first.setdefault(run.key, run)
        if before is not run:
            off.append(100 * abs(run.values["sm_active"] - before.values["sm_active"]))
            times = sorted((run.values["step_seconds"], before.values["step_seconds"]))
            ratios.append(times[1] / times[0])
    if not off:
        return "no job was measured in two sessions"
    off.sort()
    ratios.sort()
    mean, middle = sum(off) / len(off), ratios[len(ratios) // 2]
    return (
        f"{len(off)} jobs measured in two sessions: SM activity {mean:.1f} points apart in the mean "
        f"({off[-1]:.1f} at most), steps {middle:.2f} times in the median ({ratios[-1]:.2f} at most)"
    )


def collection_lines(items: Sequence[Judged]) -> List[str]:
    """Collections that were left out as a whole, each by the fit without it: the next stranger's jobs."""
    head = "left out    input              n  unknown  SM activity: mean  P90  inside  width"
    lines = [head + "   step: median  inside"]
    for collection in COLLECTIONS:
        members = [item for item in items if collection_of(item.run.row) == collection]
        for tool in (*TOOLS, TRACE):
            group = [item for item in members if item.tool == tool]
            answered = [item for item in group if not item.unknown]
            if not answered:
                continue
            active, step = errors(answered, "sm_active"), errors(answered, "step_seconds")
            widths = [item.intervals["sm_active"][1] - item.intervals["sm_active"][0] for item in answered]
            lines.append(
                f"{collection:<11} {tool:<15}{len(group):>5}{1 - len(answered) / len(group):>8.0%}"
                f"{active.mean:>20.1f}{active.p90:>6.1f}{active.inside:>7.0%}"
                f"{100 * sum(widths) / len(widths):>7.0f}{step.median:>15.0%}{step.inside:>8.0%}"
            )
    return lines


def class_lines(items: Sequence[Judged]) -> List[str]:
    """Accuracy and recall of the busy class by the published data sets, beside what was published."""
    lines = ["class  data set        n  busy  accuracy  recall   published accuracy, recall"]
    for metric, short in METRICS.items():
        by_set: Dict[str, List[Judged]] = {}
        for item in items:
            by_set.setdefault(dataset_of(item.run.family), []).append(item)
        for dataset in sorted(by_set):
            known = TABLE[dataset, metric]
            found = classes(by_set[dataset], metric)
            lines.append(_class_line(short, dataset, found) + f"   {known.accuracy:.2f}, {known.recall:.2f}")
        lines.append(_class_line(short, "all", classes(list(items), metric)))
    return lines


def _class_line(short: str, dataset: str, found: Classes) -> str:
    recall = "-" if found.recall is None else f"{found.recall:.2f}"
    return f"{short:<6} {dataset:<12}{found.jobs:>5}{found.busy:>6}{found.accuracy:>10.2f}{recall:>8}"
