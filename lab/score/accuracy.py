"""How good estimators are on measured runs: errors, underestimates, over-reservation, shards."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from lab.fit import folds
from lab.fit.similar_models import only
from lab.ground_truth import TOOLS, GroundTruth, MeasuredRun, part_of, real_mib, summary_of
from lab.places import MARGIN_FOLDS
from lab.score.figures import Answered
from lab.score.predictions import Predictions
from lab.score.trace_figures import Traced, load_figures
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.corrected.estimator import corrected
from slurm_gpumem.estimators.corrected.similar import SimilarModels, packaged
from slurm_gpumem.estimators.margin import TRACE, GroupMargin, between
from slurm_gpumem.estimators.margin import from_json as margins_from_json
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.summaries.types import ModelSummary

CHUNK = 40
"""Runs that one process scores at a time."""
INPUTS = {
    "torchinfo_full": "all layers",
    "torchinfo_deep": "all layers",
    "torchsummary": "torchsummary",
    "torchinfo": "default depth",
    "print": "print(model)",
}
"""What people call the texts of TOOLS."""
LEARNED = "corrected"
"""The estimator that was fitted on measured runs and must not be scored on those it saw."""


@dataclass(frozen=True)
class Score(Answered):
    """One estimator's answer for one run."""

    run: MeasuredRun
    estimator: str
    format: str
    real_mib: int
    peak_mib: int
    request_mib: int
    warned: bool = False


@dataclass(frozen=True)
class Failure:
    """A run that an estimator or the reader could not answer for."""

    run: MeasuredRun
    estimator: str
    message: str


def score(
    truth: GroundTruth, estimators: Sequence[str], formats: Sequence[str] = ()
) -> Tuple[List[Score], List[Failure]]:
    """Every estimator on every run, from the best text of each (or from each of `formats` that it has)."""
    chunks = _chunks(truth.runs)
    if len(chunks) == 1:
        return _score_runs(truth, estimators, formats)
    scores: List[Score] = []
    failures: List[Failure] = []
    with ProcessPoolExecutor() as pool:
        asked = [
            pool.submit(_score_runs, GroundTruth(chunk, _texts_of(chunk, truth), {}), estimators, formats)
            for chunk in chunks
        ]
        for done in asked:
            more, failed = done.result()
            scores += more
            failures += failed
    return scores, failures


def _chunks(runs: Sequence[MeasuredRun]) -> List[Tuple[MeasuredRun, ...]]:
    """The runs in their order, for one process after the other; a text is read once in each."""
    return [tuple(runs[at : at + CHUNK]) for at in range(0, len(runs), CHUNK)]


def _texts_of(runs: Sequence[MeasuredRun], truth: GroundTruth) -> Dict[str, Mapping[str, str]]:
    return {run.summary: truth.texts[run.summary] for run in runs}


def _score_runs(
    truth: GroundTruth, estimators: Sequence[str], formats: Sequence[str]
) -> Tuple[List[Score], List[Failure]]:
    scores: List[Score] = []
    failures: List[Failure] = []
    held_out = held_out_fits()
    for run in truth.runs:
        texts = truth.texts[run.summary]
        for chosen in _choose(texts, formats):
            try:
                summary = summary_of(texts[chosen])
                real = real_mib(run, summary)
            except GpumemError as error:
                failures += [Failure(run, name, str(error)) for name in estimators]
                continue
            for name in estimators:
                if name == registry.TRACE:
                    scores += held_out.traced(run, chosen, real)
                    continue
                try:
                    if name == LEARNED:
                        estimate = held_out.estimate(run, summary)
                    else:
                        estimate = registry.run(name, summary, run.job, run.gpu)
                except GpumemError as error:
                    failures.append(Failure(run, name, str(error)))
                    continue
                warned = bool(estimate.warnings or summary.warnings)
                scores.append(Score(run, name, chosen, real, estimate.peak_mib, estimate.request_mib, warned))
    return scores, failures


def score_stored(truth: GroundTruth, predictions: Predictions) -> List[Score]:
    """Stored answers, made from the fullest text of each run; runs that have none are left out."""
    scores: List[Score] = []
    for run in truth.runs:
        if run.key not in predictions.rows:
            continue
        peak, request = predictions.rows[run.key]
        texts = truth.texts[run.summary]
        chosen = _choose(texts, ())[0]
        real = run.process_mib
        if real is None:
            real = real_mib(run, summary_of(texts[chosen]))
        scores.append(Score(run, predictions.estimator, chosen, real, peak, request))
    return scores


class HeldOut:
    """The learned estimators, answering for each model by the fit that never saw it."""

    def __init__(self) -> None:
        self._traces: Optional[Dict[str, Traced]] = None
        self._models: List[SimilarModels] = []
        self._margin_folds: List[Mapping[str, GroupMargin]] = []

    def estimate(self, run: MeasuredRun, summary: ModelSummary) -> Estimate:
        if not self._models:
            self._models = [
                only(packaged(), lambda name, number=number: folds.fold_of_name(name) != number)  # type: ignore[misc]
                for number in range(folds.FOLDS)
            ]
        number = folds.fold_of_name(str(run.row.get("model", run.summary)))
        return corrected(summary, run.job, run.gpu, self._models[number], self._margins(run))

    def _margins(self, run: MeasuredRun) -> Mapping[str, GroupMargin]:
        """The margins by a fit without the run's family or kind."""
        if not self._margin_folds:
            content = json.loads(MARGIN_FOLDS.read_text())
            self._margin_folds = [margins_from_json(part) for part in content]
        return self._margin_folds[folds.fold_of_run(run.row)]

    def traced(self, run: MeasuredRun, chosen: str, real: int) -> List[Score]:
        """The score of a run whose trace's figures are kept; none for others."""
        if self._traces is None:
            self._traces = load_figures()
        found = self._traces.get(run.key)
        return [] if found is None else [self.of_trace(run, found, chosen, real)]

    def of_trace(self, run: MeasuredRun, found: Traced, chosen: str, real: int) -> Score:
        """A trace's figures with the margin of a fit without the run's family."""
        margin = self._margins(run)[TRACE]
        asked = margin.requests(found.total_mib, run.job.batch_size, found.spread)
        request = ceil(between(asked, margin.coverage)) + found.moved_mib
        return Score(run, registry.TRACE, chosen, real, round(found.total_mib) + found.moved_mib, request)


@lru_cache(maxsize=1)
def held_out_fits() -> HeldOut:
    """The one that this process reads."""
    return HeldOut()


def grouped(scores: Iterable[Score], by: str) -> Dict[str, List[Score]]:
    """Scores by a field ("family", "precision", "gpu", "format" ...; see `field_of`), names sorted."""
    groups: Dict[str, List[Score]] = {}
    for item in scores:
        groups.setdefault(field_of(item, by), []).append(item)
    return dict(sorted(groups.items()))


def field_of(item: Score, by: str) -> str:
    """What a score is grouped by: a property of the answer, of the job, or any field of the row."""
    own: Mapping[str, Callable[[], str]] = {
        "estimator": lambda: item.estimator,
        "format": lambda: item.format,
        "input": lambda: "trace" if item.estimator == registry.TRACE else INPUTS[item.format],
        "code": lambda: folds.kind_of_code(item.run.row),
        "gpu": lambda: item.run.gpu.entry or item.run.gpu.name,
        "precision": lambda: item.run.job.precision,
        "optimizer": lambda: item.run.job.optimizer,
        "part": lambda: part_of(str(item.run.row.get("model", item.run.key))),
    }
    if "+" in by:
        return ", ".join(field_of(item, part) for part in by.split("+"))
    return own[by]() if by in own else str(item.run.row.get(by, "-"))


def worst(scores: Sequence[Score], count: int) -> List[Score]:
    """The runs whose peak is farthest off; one a model, so that none fills the list."""
    seen: Dict[str, Score] = {}
    for item in sorted(scores, key=lambda s: -abs(s.error)):
        seen.setdefault(str(item.run.row.get("model", item.run.key)), item)
    return list(seen.values())[:count]


def _choose(texts: Mapping[str, str], formats: Sequence[str]) -> List[str]:
    if formats:
        return [name for name in formats if name in texts]
    return [next(name for name in TOOLS if name in texts)]
