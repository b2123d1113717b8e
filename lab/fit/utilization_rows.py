"""Rows to fit utilization on: every job measured alone, as seen through every text of its model."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence

from lab.fit.folds import fold_of_job
from lab.ground_truth import TOOLS, summary_of
from lab.traced_work import TracedWork
from lab.utilization_runs import Solo
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.structural.estimator import rebuild
from slurm_gpumem.utilization.model import TextQuality
from slurm_gpumem.utilization.predict import TRACE, why_unknown
from slurm_gpumem.utilization.work import StepWork, step_work


class UtilizationRow(NamedTuple):
    """One measured job through one text."""

    run: Solo
    tool: str
    fullest: bool
    """Whether no other text of the model tells more."""
    fold: int
    seen: TextQuality
    work: StepWork
    unknown: bool = False
    """Whether the text shows too little, so that nothing is predicted from it."""


POORER = ("torchsummary", "torchinfo", "print")
"""Texts that a job is fitted on besides its fullest."""


def rows_of(
    runs: Sequence[Solo], texts: Mapping[str, Mapping[str, str]], poorer: Sequence[str] = POORER
) -> List[UtilizationRow]:
    """All rows; a text that cannot be read gives none."""
    found: List[UtilizationRow] = []
    for run in runs:
        fullest = True
        for tool in (tool for tool in TOOLS if tool in texts.get(run.summary, {})):
            if not fullest and tool not in poorer:
                continue
            try:
                summary = summary_of(texts[run.summary][tool])
                walk = rebuild(summary, run.job)
            except GpumemError:
                continue  # the same texts are counted and named by `make accuracy`
            found.append(
                UtilizationRow(
                    run,
                    tool,
                    fullest,
                    fold_of_job(run.row),
                    TextQuality(guessed=walk.has_guesses),
                    step_work(walk.tape, run.job),
                    bool(why_unknown(summary)),
                )
            )
            fullest = False
    return found


def rows_of_traces(runs: Sequence[Solo], traced: Mapping[str, TracedWork]) -> List[UtilizationRow]:
    """The jobs that were traced, each through its trace."""
    found = [(run, traced[run.key]) for run in runs if run.key in traced]
    return [UtilizationRow(run, TRACE, True, fold_of_job(run.row), one.seen, one.work) for run, one in found]
