"""Rows to fit the correction on: every measured run, from every text of its model."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Dict, Iterator, List, Tuple

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.memory.accuracy import real_mib
from slurm_gpumem.memory.correction.estimator import REFERENCE_CONTEXT_MIB, outside
from slurm_gpumem.memory.correction.features import features
from slurm_gpumem.memory.correction.folds import group_of
from slurm_gpumem.memory.ground_truth import TOOLS, GroundTruth, MeasuredRun
from slurm_gpumem.memory.structural.estimator import simulate
from slurm_gpumem.model.reader import read_summary
from slurm_gpumem.model.types import ModelSummary

_MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One run as seen through one text."""

    key: str
    model: str
    group: str
    """What must not be split between fitting and checking: an architecture's whole family of sizes."""
    family: str
    tool: str
    total_mib: float
    """The structural estimate, and ..."""
    real_mib: float
    """... the process, both with the reference context instead of the estimated one."""
    moved_mib: int
    """The estimated context less the reference's."""
    strange: bool
    """Whether the layers' names put it outside what is measured."""
    features: Tuple[float, ...]


def rows(truth: GroundTruth) -> Iterator[Row]:
    """All rows; texts that cannot be read give none."""
    parsed: Dict[Tuple[str, str], ModelSummary] = {}
    for run in truth.runs:
        yield from _rows_of(run, truth, parsed)


def _rows_of(run: MeasuredRun, truth: GroundTruth, parsed: Dict[Tuple[str, str], ModelSummary]) -> List[Row]:
    found: List[Row] = []
    texts = truth.texts[run.summary]
    for tool in (tool for tool in TOOLS if tool in texts):
        try:
            if (run.summary, tool) not in parsed:
                parsed[run.summary, tool] = read_summary(texts[tool].rstrip("\n") + "\n")
            summary = parsed[run.summary, tool]
            walk, result = simulate(summary, run.job, run.gpu)
        except GpumemError:
            continue  # `gpumem accuracy` counts and names these
        context = run.gpu.context_for(conv=walk.uses_conv, matmul=walk.uses_matmul)
        moved = context - REFERENCE_CONTEXT_MIB
        total = result.stats.peak_reserved / _MIB + REFERENCE_CONTEXT_MIB
        model = str(run.row["model"])
        values = tuple(features(summary, walk, result, total))
        found.append(
            Row(
                key=run.key,
                model=model,
                group=group_of(model),
                family=str(run.row["family"]),
                tool=tool,
                total_mib=total,
                real_mib=real_mib(run, summary) - moved,
                moved_mib=moved,
                strange=bool(outside(values, summary, [(-inf, inf)] * len(values))),
                features=values,
            )
        )
    return found
