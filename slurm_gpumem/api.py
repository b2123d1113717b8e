"""The Python API: `from slurm_gpumem import estimate, decide, submit`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from slurm_gpumem.config.schema import JOB_KEYS
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.estimators.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.slurm.submit.sbatch import SbatchRefusedError, installed_options, run_sbatch
from slurm_gpumem.slurm.submit.sbatch_options import OptionTable, read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript, read_script
from slurm_gpumem.submission.decide import decide as decide_plan
from slurm_gpumem.submission.decision import Decision, decision_of
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.submission.sbatch_call import PlannedCall, build_call
from slurm_gpumem.submission.submission import RawInput, read_submission
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

if TYPE_CHECKING:
    from typing_extensions import Unpack

PathOrText = Union[str, "os.PathLike[str]"]
SbatchOptions = Mapping[str, Union[str, int, bool, None]]
_OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*")


class JobOptions(TypedDict, total=False):
    """What `decide` and `submit` take about the job; each is a key of #GPUMEM lines, too."""

    model: Union[PathOrText, ModelSummary]
    """The model's summary: a file, its text, or what `summarize` returned."""
    batch_size: Optional[int]
    optimizer: Optional[str]
    precision: Optional[str]
    grad_accumulation: Optional[int]
    checkpointing: Optional[bool]
    channels_last: Optional[bool]
    loss: Optional[str]
    input: Optional[str]
    """One sample's shape, "3x224x224", where the text has no shapes."""
    input_dtype: Optional[str]
    torch: Optional[str]
    module_loading: Optional[str]
    gpu: Optional[str]
    """The GPU to estimate for and run on; default: those of the partition."""
    estimator: Optional[str]
    mem: Optional[str]
    """GPU memory instead of an estimate: "12G" or "512M"; a bare number is refused, as everywhere."""
    exclusive_gpu: Optional[bool]
    max_slowdown: Optional[float]
    coverage: Optional[float]
    """Share of jobs like it that the request is to hold for: 0.9."""
    on_oom: Optional[str]
    """"requeue" or "fail"."""
    slot: Optional[str]
    """Run in time slots of "2h" or "90m", from checkpoint to checkpoint; "off": not by the site's default."""
    strategy: Optional[str]
    """How a job uses several GPUs: "ddp" (default); "fsdp" and the like keep whole GPUs, unestimated."""
    trace: Optional[bool]
    """Run the script here without a GPU first, and ask for what it would allocate."""
    trace_or: Optional[str]
    """Where that is not possible: "stop" (an error, the default) or "whole-gpu"."""
    trace_tasks: Union[str, int, None]
    """Of an array: "first", "last", "ends", "each" or tasks like "3,7"."""
    trace_limit: Optional[int]
    """Seconds for one trace."""


@dataclass(frozen=True)
class Submitted:
    """A job that sbatch took."""

    job_id: int
    cluster: Optional[str]
    """Its cluster, where sbatch names one."""
    decision: Decision
    messages: Tuple[str, ...] = ()
    """What sbatch wrote on standard error."""
    exit_code: int = 0
    """sbatch's own; with the option `wait`, the job's."""


def estimate(
    summary: Union[PathOrText, ModelSummary],
    *,
    batch_size: Optional[int] = None,
    optimizer: Optional[str] = None,
    precision: Optional[str] = None,
    gpu: str = DEFAULT_GPU,
    estimator: str = "auto",
    gpus: Optional[int] = None,
    grad_accumulation: Optional[int] = None,
    checkpointing: Optional[bool] = None,
    channels_last: Optional[bool] = None,
    loss: Optional[str] = None,
    input: Optional[str] = None,
    input_dtype: Optional[str] = None,
    torch: Optional[str] = None,
    module_loading: Optional[str] = None,
    coverage: Optional[float] = None,
) -> Estimate:
    """Estimate the peak GPU memory of training the model of `summary`: a path, the text, or `summarize`'s.

    What is not given is as the summary's trace was made, else adam, fp32 and no checkpointing. UsageError
    where something is given that the trace was made without: it has to be traced again. `coverage` is the
    share of jobs like it that request_mib is to hold for. `input` is one sample's shape ("3x224x224") for a
    text that has no shapes. On several GPUs, which train data parallel, it is for each of them.
    """
    model = summary if isinstance(summary, ModelSummary) else read_summary(summary)
    stated = StatedTraining(
        batch_size=batch_size,
        optimizer=optimizer,
        precision=precision,
        grad_accumulation=grad_accumulation,
        checkpointing=checkpointing,
        channels_last=channels_last,
        loss=loss,
        input_dtype=input_dtype,
        torch=torch,
        module_loading=module_loading,
    )
    from slurm_gpumem.estimators.registry import refuse_guess
    from slurm_gpumem.estimators.resolve import resolve_job
    from slurm_gpumem.utilization.predict import estimate_with_utilization

    resolved = resolve_job(model, stated, input=input, gpus=gpus)
    refuse_guess(resolved.summary, estimator)
    found = estimate_with_utilization(estimator, resolved.summary, resolved.job, find_gpu(gpu), coverage)
    return found._replace(warnings=(*found.warnings, *resolved.notes)) if resolved.notes else found


def decide(
    script: Optional[PathOrText] = None,
    *,
    args: Sequence[str] = (),
    sbatch: Optional[SbatchOptions] = None,
    **about: Unpack[JobOptions],
) -> Decision:
    """Decide what a job asks of Slurm, as `gpusbatch` does, and submit nothing.

    `script` is a path or the text itself, `args` are its arguments, `sbatch` are options of sbatch by name
    ({"partition": "gpu", "time": "1:00:00", "hold": True}). What is given `about` the job wins over #GPUMEM
    lines of the script, GPUMEM_* variables and configuration files. DoesNotFitError when no GPU is large
    enough, other GpumemErrors for wrong input.
    """
    return _decide(script, args, sbatch, about)[0]


def submit(
    script: Optional[PathOrText] = None,
    *,
    args: Sequence[str] = (),
    sbatch: Optional[SbatchOptions] = None,
    **about: Unpack[JobOptions],
) -> Submitted:
    """Decide what a job asks of Slurm and submit it with sbatch; arguments as for `decide`.

    SbatchRefusedError when sbatch does not take it.
    """
    if script is None and not (sbatch or {}).get("wrap"):
        raise UsageError('nothing to submit: give a script, or sbatch={"wrap": "python train.py"}')
    decision, planned = _decide(script, args, sbatch, about)
    output = run_sbatch(planned.call.parsable(), keep_stderr=True)
    if output.job_id is None:
        words = output.stderr.strip() or output.stdout.strip() or f"exit code {output.code}"
        raise SbatchRefusedError(f"sbatch submitted no job: {words}")
    messages = tuple(output.stderr.splitlines())
    return Submitted(output.job_id, output.cluster, decision, messages, output.code)


def _decide(
    script: Optional[PathOrText],
    args: Sequence[str],
    sbatch: Optional[SbatchOptions],
    about: Mapping[str, Any],
) -> Tuple[Decision, PlannedCall]:
    table = sbatch_table()
    words = _option_words(sbatch or {}, table)
    own = OwnOptions(_own_values(about), spelled=lambda key: key.replace("-", "_"))
    batch_script = _script(script)
    if batch_script is not None and batch_script.path is not None:
        words += ["--", str(script), *map(str, args)]
    elif args:
        raise UsageError("args need a script's path: sbatch takes no arguments for a script's text or wrap")
    for word in words:
        if "\0" in word:
            raise UsageError(f"{word[:40]!r} has a null character, which no command can be given")
    model = about.get("model")
    asked = read_submission(
        RawInput(
            read_command_line(words, table, ask_more=installed_options),
            own,
            batch_script,
            installed_options,
            summary=model if isinstance(model, ModelSummary) else None,
        )
    )
    notes: Tuple[str, ...] = ()
    if asked.trace:
        from slurm_gpumem.submission.job_trace.before_submission import with_trace

        after = with_trace(asked, lambda state, seconds: None)
        if after.deferred is not None:
            raise UsageError("this site traces in a job of its own (trace.where): submit it with gpusbatch")
        asked, notes = after.asked, after.notes
    plan = decide_plan(asked)
    planned = build_call(plan)
    planned = planned._replace(notes=(*notes, *planned.notes))
    return decision_of(plan, planned), planned


def _script(script: Optional[PathOrText]) -> Optional[BatchScript]:
    if script is None:
        return None
    text = os.fspath(script)
    if isinstance(script, str) and ("\n" in text or text.startswith("#!")):
        return BatchScript("script text", None, text.encode("utf-8", "surrogateescape"))
    return read_script(text)


def _option_words(options: SbatchOptions, table: OptionTable) -> List[str]:
    """sbatch's options as words: cpus_per_task=4 is --cpus-per-task=4, hold=True is --hold."""
    words: List[str] = []
    for key, value in options.items():
        name = str(key).replace("_", "-")
        letter = table.short(name)
        name = letter.name if letter else name
        if not _OPTION_NAME.fullmatch(name):
            raise UsageError(f"sbatch: {key!r} is not the name of an option; write it like cpus_per_task")
        if value is not None and value is not False:
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    return words


def _own_values(about: Mapping[str, Any]) -> Dict[str, str]:
    """What is given about the job, by key of JOB_KEYS and as the other layers have it."""
    known = [key.replace("-", "_") for key in JOB_KEYS]
    values: Dict[str, str] = {}
    for name, value in about.items():
        if name not in known:
            raise UnknownNameError("argument", name, known)
        if value is None:
            continue
        if isinstance(value, ModelSummary):
            text = value.name or "model"
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        else:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        if not text.strip():
            raise UsageError(f"{name} needs a value")
        values[name.replace("_", "-")] = text
    return values
