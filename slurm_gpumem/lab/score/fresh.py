"""Jobs that nothing was fitted on, answered as a user would be: `gpumem accuracy --fresh --data DIR`.

One Markdown table by kind of input and of code, for docs/accuracy.md. Unlike the other tables this one uses
the fits that are shipped: no fold is needed for a job that was not there when they were made.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.lab.fit.folds import kind_of_code
from slurm_gpumem.lab.ground_truth import TOOLS, GroundTruth, MeasuredRun, load_ground_truth, real_mib
from slurm_gpumem.lab.score.accuracy import INPUTS, Figures, Score, figures
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

INPUT_NAMES = ("all layers", "default depth", "torchsummary", "print(model)", "trace")
CODES = ("library", "hand-written", "generated")
SCORED = tuple(tool for tool in TOOLS if tool != "torchinfo_deep")
"""One text of every kind: of the two with all layers the fuller one."""


class Answers(NamedTuple):
    """The scores of a data set, and how many runs got no answer."""

    scores: List[Score]
    refused: Dict[Tuple[str, str], int]


def fresh_lines(folder: Path, traces: Optional[Path]) -> List[str]:
    """The table as Markdown."""
    truth = load_ground_truth(folder)
    answers = _answers(truth, traces)
    lines = [
        "| input | code | runs | median / P90 | below need | without a warning | Σ request / Σ need "
        "| > 1.5 × / > 2 × | no answer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in INPUT_NAMES:
        for code in CODES:
            own = [s for s in answers.scores if s.format == name and kind_of_code(s.run.row) == code]
            refused = answers.refused.get((name, code), 0)
            if own:
                lines.append(f"| {name} | {code} | {_cells(figures(own))} | {refused} |")
    models = len({run.row.get("model", run.summary) for run in truth.runs})
    return [*lines, "", f"{len(truth.runs):,} runs of {models:,} models."]


def _cells(found: Figures) -> str:
    cells = (
        f"{found.count:,}",
        f"{found.median_error:.1%} / {found.p90_error:.1%}",
        f"{found.under_request:.1%}",
        f"{found.under_unwarned:.1%}",
        f"{found.capacity:.2f}",
        f"{found.over_half:.1%} / {found.over_twice:.1%}",
    )
    return " | ".join(cells)


def _answers(truth: GroundTruth, traces: Optional[Path]) -> Answers:
    found = Answers([], {})
    for run in truth.runs:
        texts = truth.texts[run.summary]
        for name, summary in (*_texts(texts.items()), *_traced(run, traces)):
            code = kind_of_code(run.row)
            try:
                if summary is None:
                    raise GpumemError("it cannot be read")
                estimate = registry.run("auto", summary, run.job, run.gpu)
            except GpumemError:
                found.refused[name, code] = found.refused.get((name, code), 0) + 1
                continue
            found.scores.append(_score(run, name, summary, estimate))
    return found


def _texts(texts: Iterable[Tuple[str, str]]) -> List[Tuple[str, Optional[ModelSummary]]]:
    return [(INPUTS[tool], _read(text)) for tool, text in texts if tool in SCORED]


def _read(text: str) -> Optional[ModelSummary]:
    try:
        return read_summary(text.rstrip("\n") + "\n")
    except GpumemError:
        return None


def _traced(run: MeasuredRun, folder: Optional[Path]) -> List[Tuple[str, Optional[ModelSummary]]]:
    if folder is None:
        return []
    from slurm_gpumem.lab.score.trace_rows import path_of
    from slurm_gpumem.summaries.own import parse

    path = path_of(folder, run.key)
    if not path.exists():
        return [("trace", None)]
    with gzip.open(path, "rt") as file:
        file.readline()
        return [("trace", parse(file.read(), origin=run.key))]


def _score(run: MeasuredRun, name: str, summary: ModelSummary, estimate: Estimate) -> Score:
    return Score(
        run,
        estimate.estimator,
        name,
        real_mib(run, summary),
        estimate.peak_mib,
        estimate.request_mib,
        bool(estimate.warnings or summary.warnings),
    )
