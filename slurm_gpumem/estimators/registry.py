"""Estimators by name. Each is imported only when asked for."""

from __future__ import annotations

import importlib
from typing import Callable, Optional

from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.estimators.coverage import with_coverage, within
from slurm_gpumem.estimators.site_layer import SUFFIX, adjusted
from slurm_gpumem.estimators.types import Estimate, Estimator, Gpu, TrainingJob, Unseen
from slurm_gpumem.summaries.types import ModelSummary

ESTIMATORS = {
    "corrected": "slurm_gpumem.estimators.corrected",
    "trace": "slurm_gpumem.estimators.traced",
    "structural": "slurm_gpumem.estimators.structural",
    "horus": "slurm_gpumem.estimators.published.horus",
    "faketensor": "slurm_gpumem.estimators.published.faketensor",
    "deepspeed": "slurm_gpumem.estimators.published.deepspeed",
}
DEFAULT = "corrected"
FROM_RUNS = {"remembered": "slurm_gpumem.estimators.remembered"}
"""These answer only where the job has run before, and so stand in no comparison of estimators."""
TRACE = "trace"
"""Taken for summaries of our own, the only ones that it reads."""
LEARNT = (DEFAULT, TRACE)
"""Estimators over which a site may have a layer of its own."""


def has_layer(name: str) -> bool:
    """Whether a site may have a layer over this estimator, and its requests follow the environment."""
    return name.split(SUFFIX)[0] in LEARNT


def estimator_names() -> list[str]:
    """All estimators, the default first."""
    return [DEFAULT, *(name for name in ESTIMATORS if name != DEFAULT)]


def names_for(summary: ModelSummary) -> list[str]:
    """The estimators that can answer for a summary, the one taken by default first."""
    others = [name for name in estimator_names() if name != TRACE]
    return others if summary.trace is None else [TRACE, *others]


def same_way(estimate: Estimate, summary: ModelSummary, gpu: Gpu) -> Callable[[TrainingJob], Estimate]:
    """A function that estimates other jobs of the same model as this one was estimated."""
    # What was measured of one job says nothing about another batch size.
    name = "auto" if estimate.estimator in FROM_RUNS else estimate.estimator
    coverage = estimate.coverage if estimate.requests else None
    return lambda job: run(name, summary, job, gpu, coverage)


def unseen_code(summary: ModelSummary) -> Optional[Unseen]:
    """The code that a text cannot show; None for a trace, which shows all of it."""
    if summary.trace is not None:
        return None
    from slurm_gpumem.estimators.corrected.unseen import unseen

    return unseen(summary)


def run(
    name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu, coverage: Optional[float] = None
) -> Estimate:
    """Estimate with the named estimator.

    "auto" uses the trace if the summary has one, else the default, with the site's own layer over it.
    `coverage` None: as the estimator has it for such jobs.
    """
    found = _run(name, summary, job, gpu)
    return within(found if coverage is None else with_coverage(found, coverage), gpu)


def _run(name: str, summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    if name == "auto":
        name = (DEFAULT if summary.trace is None else TRACE) + SUFFIX
    if name.endswith(SUFFIX):
        return adjusted(_run(name[: -len(SUFFIX)], summary, job, gpu), lambda: summary.fingerprint)
    module = {**ESTIMATORS, **FROM_RUNS}.get(name)
    if module is None:
        raise UnknownNameError("estimator", name, [*estimator_names(), *FROM_RUNS])
    function: Estimator = importlib.import_module(module).estimate
    if not has_layer(name):
        return function(summary, job, gpu)
    from slurm_gpumem.estimators.environment import environment_of, in_environment, widened

    here = in_environment(gpu, environment_of(job))
    convolutions = summary.trace is not None and summary.trace.uses_conv
    return widened(function(summary, job, here), here, traced=name == TRACE, convolutions=convolutions)
