"""`gpumem estimate --directive [--write]` and `--check`: the memory line of a script, made or looked at."""

from __future__ import annotations

import argparse
import os
from typing import Callable, Dict, Optional, Sequence, Tuple

from slurm_gpumem.cli.options import own_options
from slurm_gpumem.config.load import Config, JobDefault
from slurm_gpumem.config.schema import JOB_KEYS, JOB_SWITCHES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.memory_line import MemoryLine, parse_line
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.slurm.submit.script import (
    MEMORY_LINE,
    BatchScript,
    Directive,
    check_script,
    read_directives,
    read_script,
)
from slurm_gpumem.submission.job.job_variables import job_environment
from slurm_gpumem.submission.job.script_line import (
    changed_since,
    line_for,
    open_script,
    with_line,
    write_script,
)
from slurm_gpumem.submission.job.settings import JobSettings, job_settings
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import printable

Subject = Callable[[argparse.Namespace, JobSettings], Tuple[ModelSummary, TrainingJob, Tuple[str, ...]]]
"""Reads or traces the model, and says how it is trained."""
_IN_LINE = (
    "batch-size", "optimizer", "precision", "grad-accumulation", "checkpointing", "channels-last", "loss",
    "input-dtype",
)  # fmt: skip
"""What a memory line says of the job."""


def line_command(args: argparse.Namespace, config: Config, subject: Subject) -> int:
    """Make the line, and print it or write it into the script; or check the one that the script has."""
    script, directives = _script(args)
    old = _old_line(script, directives) if args.check else None
    if args.check and old is None:
        print(printable(f"{args.check}: it has no memory line; gpumem estimate --directive --write adds one"))
        return 1
    if old is not None:
        # What the line was made for counts unless the script, the environment or an option says otherwise.
        config = config._replace(job={**config.job, **_presets(old)})
    left_out = (MEMORY_LINE, "mem") if args.summary is None else (MEMORY_LINE, "mem", "model")
    stated = [one for one in directives if one.key not in left_out]
    own, path = own_options(args), args.write or args.check
    settings = job_settings(config, stated, os.environ, own, script=path).under(
        job_environment(os.environ, script)
    )
    if args.summary is None:
        args.summary = settings.model
    if args.summary is None:
        raise UsageError(f"{path} has no #GPUMEM model=; name the summary: gpumem estimate summary.txt ...")
    summary, job, _ = subject(args, settings)
    estimator = settings.text("estimator") or "auto"
    registry.refuse_guess(summary, estimator)
    coverage = settings.coverage or config.sharing.coverage
    _refuse(job)

    def made(job: TrainingJob) -> MemoryLine:
        with StatusLine() as status:
            return line_for(
                summary, job, estimator, coverage, lambda n: status(f"{n - n % 10} batch sizes estimated")
            )

    answer = 0
    if old is not None:
        why = changed_since(old, settings.line_batch(old), summary, job, made)
        first, last = old.knots[0].batch, old.knots[-1].batch
        said = why or f"its memory line still holds, for batches of {first} to {last}"
        print(printable(f"{path}: {said}"))
        answer = 1 if why else 0
    elif script is None:
        print(made(job).directive())
    else:
        _write(script, made(job))
    by_hand = [f"{path}, line {one.line}: mem={one.value}" for one in directives if one.key == "mem"]
    warnings = (*config.warnings, *settings.remarks(), *summary.warnings)
    for warning in (*warnings, *(f"{given} counts before the memory line; remove it" for given in by_hand)):
        say(f"warning: {warning}")
    return answer


def _script(args: argparse.Namespace) -> Tuple[Optional[BatchScript], Sequence[Directive]]:
    """The script that --write or --check names, and what its #GPUMEM lines say."""
    if args.write is not None:
        script = open_script(args.write)
    elif args.check is not None:
        script = read_script(args.check)
        check_script(script)
    else:
        return None, ()
    directives = read_directives(script, (*JOB_KEYS, MEMORY_LINE), JOB_SWITCHES)
    for warning in directives.warnings:
        say(f"warning: {warning}")
    return script, directives.found


def _old_line(script: Optional[BatchScript], directives: Sequence[Directive]) -> Optional[MemoryLine]:
    """The memory line that sbatch would go by: the last one."""
    found = [one for one in directives if one.key == MEMORY_LINE]
    if script is None or not found:
        return None
    try:
        return parse_line(found[-1].value)
    except UsageError as error:
        raise UsageError(f"{script.name}, line {found[-1].line}: {error}") from None


def _presets(line: MemoryLine) -> Dict[str, JobDefault]:
    job = line.training_job(line.batch)
    values = {key: str(getattr(job, key.replace("-", "_"))) for key in _IN_LINE}
    return {key: JobDefault(value, "the memory line") for key, value in values.items()}


def _refuse(job: TrainingJob) -> None:
    """What there is no line for."""
    if job.gpus > 1:
        raise UsageError(
            f"a memory line is for a part of one GPU, and the job has {job.gpus}; leave --gpus out"
        )


def _write(script: BatchScript, line: MemoryLine) -> None:
    changed = with_line(script, line)
    if changed.data == script.data:
        say(f"{script.name} has this memory line already")
        return
    write_script(script, changed.data)
    first, last = line.knots[0].batch, line.knots[-1].batch
    say(f"{script.name}: memory line for batches of {first} to {last} written; sbatch {script.name} will do")
