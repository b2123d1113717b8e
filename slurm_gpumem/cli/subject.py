"""What `fit` and `why` are asked about: a summary's file, or code that is traced on the spot."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Optional, Tuple

from slurm_gpumem.cli.target_options import is_code, options_given, trace_code, trace_request
from slurm_gpumem.config.load import JOB_KEYS, Config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.submission.settings import JobSettings, OwnOptions, job_settings
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

DEFAULT_BATCH = 32
"""For tracing where nobody says a batch size: sizes are scaled from it anyway."""


@dataclass(frozen=True)
class Subject:
    """A model to answer about, and how it is trained."""

    summary: ModelSummary
    job: TrainingJob
    batch_given: bool
    """Whether somebody said a batch size, or it is only where the search begins."""
    notes: Tuple[str, ...] = ()

    @property
    def asked(self) -> Optional[int]:
        """The batch size that was asked about, if any."""
        return self.job.batch_size if self.batch_given else None


def read_subject(text: str, args: argparse.Namespace, config: Config) -> Subject:
    """Read the summary, or trace the code; errors say how to name either."""
    settings = job_settings(config, (), os.environ, OwnOptions(_options(args)))
    if is_code(text):
        return _traced(text, args, settings)
    used = options_given(args)
    if used:
        raise UsageError(
            f"{text}: is a summary; {', '.join(used)} would only matter for code (train.py:build_model)"
        )
    summary = read_summary(text)
    if not summary.name:
        summary = replace(summary, name=Path(text).stem)
    stated = settings.stated_training()
    job = training_job(
        summary, stated._replace(batch_size=stated.batch_size or summary.batch or DEFAULT_BATCH)
    )
    summary, notes = _in_precision(summary, job.precision)
    return Subject(summary, job, settings.text("batch-size") is not None, notes)


def _in_precision(summary: ModelSummary, precision: str) -> Tuple[ModelSummary, Tuple[str, ...]]:
    """A trace in single precision answers for autocast as well, by its list of operators."""
    trace = summary.trace
    if trace is None or trace.job.precision not in ("fp32", "tf32") or not precision.startswith("amp-"):
        return summary, ()
    from slurm_gpumem.estimators.explain.changes import autocast

    changed = autocast(trace)
    changed = replace(changed, job=replace(changed.job, precision=precision))
    note = (
        f"traced with {trace.job.precision}; {precision} follows autocast's list of operators. "
        f"gpumem summarize --precision {precision} traces it"
    )
    return replace(summary, trace=changed), (note,)


def _traced(text: str, args: argparse.Namespace, settings: JobSettings) -> Subject:
    keys = ("batch-size", "optimizer", "precision", "loss")
    given = {key.replace("-", "_"): value for key in keys if (value := settings.text(key)) is not None}
    defaults = {"batch_size": str(DEFAULT_BATCH), **given}
    traced = trace_code(trace_request(text, args, tuple(defaults.items())), args)
    summary = read_summary(traced.summary.decode(errors="replace"))
    # The trace holds what the options said, custom losses and optimizers included.
    own = {key: value for key, value in _options(args).items() if key == "batch-size"}
    batch = int(own.get("batch-size", defaults["batch_size"]))
    job = training_job(summary, StatedTraining(batch_size=batch))
    return Subject(summary, job, "batch_size" in given, traced.notes)


def _options(args: argparse.Namespace) -> Dict[str, str]:
    given = {key: getattr(args, key.replace("-", "_"), None) for key in JOB_KEYS}
    return {
        key: "yes" if value is True else str(value)
        for key, value in given.items()
        if value and not isinstance(value, list)
    }
