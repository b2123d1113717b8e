"""Estimators by name. Each is imported only when asked for."""

from __future__ import annotations

import gc
import importlib
from contextlib import contextmanager
from typing import Callable, Iterator, Optional

from slurm_gpumem.errors import SummaryError, UnknownNameError
from slurm_gpumem.estimators.margin import with_coverage, within
from slurm_gpumem.estimators.types import CustomForward, Estimate, Estimator, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

ESTIMATORS = {
    "corrected": "slurm_gpumem.estimators.corrected.estimator",
    "trace": "slurm_gpumem.estimators.traced.estimator",
    "structural": "slurm_gpumem.estimators.structural.estimator",
    "horus": "slurm_gpumem.estimators.published.formulas:horus",
    "horus-authors": "slurm_gpumem.estimators.published.formulas:horus_authors",
    "faketensor": "slurm_gpumem.estimators.published.formulas:faketensor",
    "deepspeed": "slurm_gpumem.estimators.published.formulas:deepspeed",
    "gpumemnet": "slurm_gpumem.estimators.published.gpumemnet:by_perceptrons",
    "gpumemnet-transformer": "slurm_gpumem.estimators.published.gpumemnet:by_transformer",
}
"""A module with a function `estimate`, or with the function that is named."""
DEFAULT = "corrected"
FROM_RUNS = {"remembered": "slurm_gpumem.estimators.remembered"}
"""These answer only where the job has run before, and so stand in no comparison of estimators."""
TRACE = "trace"
"""Taken for summaries of our own, and for those of models whose trace is stored."""
FOLLOW_ENVIRONMENT = (DEFAULT, TRACE)
"""Estimators whose requests follow the job's environment."""


def estimator_names() -> list[str]:
    """All estimators, the default first."""
    return [DEFAULT, *(name for name in ESTIMATORS if name != DEFAULT)]


def names_for(summary: ModelSummary) -> list[str]:
    """The estimators that can answer for a summary, the one taken by default first."""
    from slurm_gpumem.estimators.known.recognize import recognized

    others = [name for name in estimator_names() if name != TRACE]
    return [TRACE, *others] if summary.trace is not None or recognized(summary) else others


def same_way(estimate: Estimate, summary: ModelSummary, gpu: Gpu) -> Callable[[TrainingJob], Estimate]:
    """A function that estimates other jobs of the same model as this one was estimated."""
    # What was measured of one job says nothing about another batch size, and not every training of a known
    # model is stored.
    stored = summary.trace is None and by_trace(estimate)
    name = "auto" if stored or estimate.estimator in FROM_RUNS else estimate.estimator
    coverage = estimate.margin.coverage if estimate.margin.requests else None
    return lambda job: run(name, summary, job, gpu, coverage)


def custom_forward(summary: ModelSummary) -> Optional[CustomForward]:
    """The code that a summary cannot show; None for a trace, which shows all of it, and a known model."""
    from slurm_gpumem.estimators.known.recognize import recognized

    if summary.trace is not None or recognized(summary):
        return None
    if not summary.has_shapes:
        return CustomForward(1.0, (summary.name,) if summary.name else (), no_shapes=True)
    from slurm_gpumem.estimators.corrected.custom_forward import custom_forward

    return custom_forward(summary)


def by_trace(estimate: Estimate) -> bool:
    """Whether a trace was replayed for it, the summary's own or a stored one."""
    return estimate.estimator == TRACE


def refuse_guess(summary: ModelSummary, estimator: str) -> None:
    """SummaryError for a summary without shapes that is of no known model, unless an estimator was chosen."""
    if estimator != "auto" or summary.has_shapes:
        return
    custom = custom_forward(summary)
    if custom is None or not custom.no_shapes:
        return
    from slurm_gpumem.summaries.input_shape import example_input, shape_words, takes_tokens, torchinfo_call

    sample = example_input(summary)
    raise SummaryError(
        f"{custom.message}: an estimate may be wrong by a factor of ten.\n"
        f"Say its input (like --input {shape_words(sample)}, the batch left out), give one with shapes\n"
        f"({torchinfo_call(sample, takes_tokens(summary))})\n"
        "or trace the training (gpumem trace -- python train.py). --estimator corrected guesses anyway."
    )


def run(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float] = None
) -> Estimate:
    """Estimate with the named estimator.

    "auto" uses the trace if the summary has one or its model's is stored, else the default.
    `coverage` None: as the estimator has it for such jobs.
    """
    with _without_collector():
        found = _run(name, summary, job, gpu)
    return within(found if coverage is None else with_coverage(found, coverage), gpu)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Thousands of small objects that all stay until the end: looking for rubbish among them finds none."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _run(name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    if summary.trace is None and name in ("auto", TRACE):
        from slurm_gpumem.estimators.known.recognize import recognized, said_of, with_stored_trace

        traced = with_stored_trace(summary, job)
        known = recognized(summary)
        if traced.trace is not None and known is not None:
            found = _run(name, traced, job, gpu)
            return found._replace(assumptions=(*said_of(known), *found.assumptions))
    if name == "auto":
        found = _run(DEFAULT if summary.trace is None else TRACE, summary, job, gpu)
        # Whoever decides by it must know that it is a guess.
        guess = summary.trace is None and not summary.has_shapes
        if guess:
            found = found._replace(margin=found.margin._replace(custom_forward=custom_forward(summary)))
        return found
    module, _, function_name = {**ESTIMATORS, **FROM_RUNS}.get(name, "").partition(":")
    if not module:
        raise UnknownNameError("estimator", name, [*estimator_names(), *FROM_RUNS])
    function: Estimator = getattr(importlib.import_module(module), function_name or "estimate")
    if name not in FOLLOW_ENVIRONMENT:
        return function(summary, job, gpu)
    from slurm_gpumem.estimators.environment import environment_of, in_environment, widened
    from slurm_gpumem.estimators.versions import not_simulated, with_workspaces

    here = with_workspaces(in_environment(gpu, environment_of(job)), job)
    convolutions = summary.trace is not None and summary.trace.uses_conv
    found = widened(function(summary, job, here), here, traced=name == TRACE, convolutions=convolutions)
    if job.gpus > 1 and name != TRACE:
        from slurm_gpumem.estimators.traced.changes import with_nccl

        found = with_nccl(found)
    notes = not_simulated(job, here)
    return found._replace(warnings=(*found.warnings, *notes)) if notes else found
