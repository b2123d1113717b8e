"""Rows to fit on: every measured run, from every text of its model."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Tuple

from lab.fit.folds import group_of
from lab.ground_truth import TOOLS, GroundTruth, MeasuredRun, real_mib, summary_of
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.corrected.estimator import (
    anchors,
    conditions_of,
    margin_group,
    shown_group,
    total_mib,
)
from slurm_gpumem.estimators.corrected.similar import Conditions, classes_of
from slurm_gpumem.estimators.margin import REFERENCE_CONTEXT_MIB
from slurm_gpumem.estimators.structural.estimator import simulate
from slurm_gpumem.summaries.types import ModelSummary


@dataclass(frozen=True)
class Point:
    """The structural estimate at one of the batch sizes that an answer is made from."""

    share: float
    total_mib: float
    """With the reference context instead of the estimated one."""
    conditions: Conditions


@dataclass(frozen=True)
class Row:
    """One run as seen through one text."""

    key: str
    model: str
    group: str
    """What must not be split between fitting and checking: an architecture's whole family of sizes."""
    family: str
    tool: str
    points: Tuple[Point, ...]
    real_mib: float
    """The process, with the reference context."""
    moved_mib: int
    """The estimated context less the reference's."""
    batch: int
    shown: str
    """How much the text shows (estimator.shown_group)."""
    margin: str
    """The group whose margin the text has (estimator.margin_group)."""
    classes: Tuple[str, ...]
    """Those that the text names."""

    @property
    def total_mib(self) -> float:
        """The structural estimate."""
        return sum(point.share * point.total_mib for point in self.points)


def rows(truth: GroundTruth, kept: Optional[Path] = None) -> List[Row]:
    """All rows; texts that cannot be read give none. With `kept`, from that file, or into it."""
    if kept is not None and kept.exists():
        with gzip.open(kept, "rt") as file:
            return [_from_json(json.loads(line)) for line in file]
    found = list(_simulated(truth))
    if kept is not None:
        with gzip.open(kept, "wt", compresslevel=1) as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
    return found


def _from_json(content: Dict[str, object]) -> Row:
    points = tuple(
        Point(point["share"], point["total_mib"], Conditions(*point["conditions"]))
        for point in content.pop("points")  # type: ignore[attr-defined]  # as asdict wrote it
    )
    classes = tuple(str(name) for name in content.pop("classes"))  # type: ignore[attr-defined]  # the same
    return Row(points=points, classes=classes, **content)  # type: ignore[arg-type]  # as asdict wrote it


def _simulated(truth: GroundTruth) -> Iterator[Row]:
    # In chunks: runs of one model come one after the other, and its texts are read once.
    with ProcessPoolExecutor() as pool:
        texts = [truth.texts[run.summary] for run in truth.runs]
        for found in pool.map(_rows_of, truth.runs, texts, chunksize=16):
            yield from found


def _rows_of(run: MeasuredRun, texts: Mapping[str, str]) -> List[Row]:
    found: List[Row] = []
    for tool in (tool for tool in TOOLS if tool in texts):
        try:
            found.append(_row(run, tool, summary_of(texts[tool])))
        except GpumemError:
            continue  # `make accuracy` counts and names these
    return found


def _row(run: MeasuredRun, tool: str, summary: ModelSummary) -> Row:
    points: List[Point] = []
    for share, batch in anchors(run.job.batch_size):
        walk, result = simulate(summary, run.job._replace(batch_size=batch), run.gpu)
        points.append(Point(share, total_mib(result), conditions_of(walk, result)))
    moved = run.gpu.context_for(conv=walk.uses_conv, matmul=walk.uses_matmul) - REFERENCE_CONTEXT_MIB
    model, shown = str(run.row["model"]), shown_group(summary, walk)
    return Row(
        key=run.key,
        model=model,
        group=group_of(model),
        family=str(run.row["family"]),
        tool=tool,
        points=tuple(points),
        real_mib=real_mib(run, summary) - moved,
        moved_mib=moved,
        batch=run.job.batch_size,
        shown=shown,
        margin=margin_group(summary, shown),
        classes=tuple(sorted(classes_of(summary))),
    )
