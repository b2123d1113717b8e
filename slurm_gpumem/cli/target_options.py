"""The model that a command is about: a summary's file, or code and how to trace it (summarize, fit, why)."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.cli.options import (
    add_input,
    add_python,
    add_set,
    add_training_options,
    named_summary,
    own_options,
    seconds,
)
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.training_job import StatedTraining, refuse_sharded, training_job
from slurm_gpumem.estimators.types import LOSSES, OPTIMIZERS, PRECISIONS, TrainingJob
from slurm_gpumem.submission.job.settings import JobSettings, job_settings
from slurm_gpumem.summaries.input_shape import split_inputs
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import parse_mib

if TYPE_CHECKING:
    # Tracing is loaded where code is named: most calls name a summary's file.
    from slurm_gpumem.config.load import Config
    from slurm_gpumem.tracing.guard.limits import Limits
    from slurm_gpumem.tracing.model.spec import TraceRequest
    from slurm_gpumem.tracing.script.run import TracedScript

TARGET_HELP = (
    "train.py:build_model, package.module:build_model, timm:resnet50, hf:BertForSequenceClassification "
    "(class or model type of the installed transformers) or a config.json"
)
LOSS_NAMES = ("auto", *LOSSES, "bce", "sum")
DEFAULT_BATCH = 32
"""For tracing where nobody says a batch size: sizes are scaled from it anyway."""


class Subject(NamedTuple):
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


_ONLY_TO_SUMMARIZE: Dict[str, object] = {
    "loss": None,
    "channels_last": False,
    "set": [],
    "head": "",
    "batch_callable": None,
    "target_shape": None,
    "step_callable": None,
    "evaluate": False,
    "time_limit": 120.0,
    "memory_limit": None,
    "python": None,
}
"""What `gpumem summarize` can be told of code, as it is for commands that do not ask: with more to say, one
writes a summary for them."""


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """How a model is trained, where a summary or code is named."""
    step = parser.add_argument_group("how it is trained")
    add_training_options(step)
    add_input(step)
    parser.set_defaults(**_ONLY_TO_SUMMARIZE)


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Everything about code and how it is trained."""
    step = parser.add_argument_group("how it is trained")
    add_training_options(step, ", none (inference), or CODE taking the parameters")
    step.add_argument(
        "--loss", metavar="NAME", help=f"{', '.join(LOSS_NAMES)}, or CODE taking output and target"
    )
    step.add_argument("--channels-last", action="store_true", help="model and input in channels_last")
    code = parser.add_argument_group("the model's code")
    add_set(code)
    code.add_argument(
        "--head", default="", metavar="NAME", help="head of a Hugging Face model type (causal-lm, ...)"
    )
    add_input(code)
    code.add_argument(
        "--batch-callable", metavar="CODE", help="makes the batch: train.py:make_batch(batch_size)"
    )
    code.add_argument(
        "--target", dest="target_shape", metavar="SHAPE", help="what the loss compares with, like --input"
    )
    code.add_argument(
        "--step-callable", metavar="CODE", help="one training step: train.py:step(model, batch, optimizer)"
    )
    code.add_argument(
        "--eval", dest="evaluate", action="store_true", help="an evaluation pass after the step as well"
    )
    child = parser.add_argument_group("the process that runs it")
    child.add_argument(
        "--time-limit", type=seconds, default=120.0, metavar="S", help="seconds (default: 120)"
    )
    child.add_argument("--memory-limit", metavar="SIZE", help="host memory (default: 3/4 of what is free)")
    add_python(child)


def add_generate_option(parser: argparse.ArgumentParser) -> None:
    """For commands that answer for one batch size."""
    parser.add_argument(
        "--generate",
        type=int,
        metavar="TOKENS",
        help="inference of a Hugging Face model: texts of --input 1024 tokens, and as many new ones as this",
    )


def read_subject(text: str, args: argparse.Namespace, config: Config) -> Subject:
    """Read the summary, or trace the code; errors say how to name either."""
    from slurm_gpumem.estimators.resolve import resolve_job
    from slurm_gpumem.submission.job.job_variables import job_environment

    settings = job_settings(config, (), os.environ, own_options(args)).under(job_environment(os.environ))
    given = settings.text("batch-size") is not None
    traced = traced_subject(text, args, settings, str(DEFAULT_BATCH))
    gpus = getattr(args, "gpus", 1)
    if traced is not None:
        job = traced.job._replace(gpus=gpus or 1)
        return Subject(traced.summary, job, given, (*settings.remarks(), *traced.notes))
    summary, presets = named_summary(text), settings.presets()
    resolved = resolve_job(
        summary,
        settings.stated_training(),
        presets=presets._replace(batch_size=presets.batch_size or summary.batch or DEFAULT_BATCH),
        input=settings.text("input"),
        gpus=gpus,
    )
    return Subject(resolved.summary, resolved.job, given, (*settings.remarks(), *resolved.notes))


def traced_subject(
    text: str, args: argparse.Namespace, settings: JobSettings, default_batch: Optional[str] = None
) -> Optional[Subject]:
    """The code that `text` names, traced; None where it names a summary."""
    if _names_code(text):
        refuse_sharded(settings.text("strategy"))
        request = trace_request(text, args, settings, default_batch)
        traced = trace(request, args)
        summary = read_summary(traced.summary.decode(errors="replace"))
        # The trace holds what the options said, custom losses and optimizers included; where the job runs is
        # not in it.
        stated = StatedTraining(
            batch_size=request.batch_size,
            torch=settings.text("torch"),
            module_loading=settings.text("module-loading"),
            alloc_conf=settings.text("alloc-conf"),
            cublas_workspace=settings.text("cublas-workspace"),
        )
        job = training_job(summary, stated)
        return Subject(summary, job, True, traced.notes)
    used = _options_for_code(args)
    if used:
        raise UsageError(
            f"{text}: is a summary; {', '.join(used)} would only matter for code (train.py:build_model)"
        )
    return None


def _names_code(text: str) -> bool:
    if ":" not in text and not text.endswith(".py"):
        return False
    from slurm_gpumem.tracing.model.request import is_code

    return is_code(text)


def trace_request(
    target: str, args: argparse.Namespace, settings: JobSettings, default_batch: Optional[str] = None
) -> TraceRequest:
    """What options and settings ask for."""
    from slurm_gpumem.tracing.model.request import compared_with, name_or_code, one_of, well_known, with_dtype
    from slurm_gpumem.tracing.model.spec import (
        NO_OPTIMIZER,
        TraceRequest,
        parse_arguments,
        parse_input,
        parse_target,
        torch_dtype,
    )

    named = well_known(parse_target(target, parse_arguments(args.set)))
    stated_dtype = settings.text("input-dtype") or "auto"
    dtype = torch_dtype(stated_dtype) if stated_dtype != "auto" else ""
    optimizer, optimizer_code = name_or_code(
        settings.text("optimizer") or "adam", (*OPTIMIZERS, NO_OPTIMIZER), "optimizer"
    )
    loss, loss_code = name_or_code(settings.text("loss") or "auto", LOSS_NAMES, "loss")
    return TraceRequest(
        target=named,
        batch_size=_batch(settings.text("batch-size") or default_batch),
        inputs=tuple(with_dtype(parse_input(text), dtype) for text in _inputs(settings)),
        batch_callable=parse_target(args.batch_callable) if args.batch_callable else None,
        step_callable=parse_target(args.step_callable) if args.step_callable else None,
        loss=loss,
        loss_callable=loss_code,
        target_input=compared_with(args.target_shape),
        optimizer=optimizer,
        optimizer_callable=optimizer_code,
        precision=one_of(settings.text("precision") or "fp32", PRECISIONS, "precision"),
        grad_accumulation=_accumulation(settings, args),
        checkpointing=args.checkpointing,
        channels_last=args.channels_last,
        evaluate=args.evaluate,
        head=args.head,
    )


def trace(request: TraceRequest, args: argparse.Namespace, *, again: bool = False) -> TracedScript:
    """Trace it as the options say, with a line of progress where somebody is watching.

    A trace that was made before is taken, unless it is to be made `again`; another Python's is not kept.
    """
    from slurm_gpumem.submission.job_trace import cache
    from slurm_gpumem.submission.job_trace.batch_script import ScriptRun
    from slurm_gpumem.terminal.progress import StatusLine
    from slurm_gpumem.tracing.fake_cuda.gpu_facts import ANY_GPU
    from slurm_gpumem.tracing.model.request import trace_code
    from slurm_gpumem.tracing.script.hints import PHASE
    from slurm_gpumem.tracing.script.messages import State

    data = request.to_json().encode()
    run = ScriptRun(request.target.label, data, (), dict(os.environ), os.getcwd(), ANY_GPU)
    kept = None if again or args.python else cache.known(run)
    if kept is not None:
        return kept
    limits = trace_limits(args)
    started = time.time()
    with StatusLine() as line:

        def show(state: State, passed_s: float) -> None:
            if passed_s >= 1:
                phase = state.failed if state.kind == PHASE else "importing torch"
                line(f"{request.target.label}: {phase}, {passed_s:.0f} s")

        traced = trace_code(request, limits, python=args.python, progress=show)
    if not args.python:
        cache.keep(run, traced, started)  # where it cannot be kept it is traced again
    return traced


def trace_limits(args: argparse.Namespace) -> Limits:
    """What the process that runs the code may take."""
    from slurm_gpumem.tracing.guard.limits import Limits

    return Limits(args.time_limit, memory_mib=parse_mib(args.memory_limit) if args.memory_limit else None)


def _accumulation(settings: JobSettings, args: argparse.Namespace) -> int:
    """Batches per optimizer step; a user's own step does its own accumulation."""
    stated, presets = settings.stated_training(), settings.presets()
    found = stated.grad_accumulation or presets.grad_accumulation or 1
    if found > 1 and args.step_callable and args.grad_accumulation:
        raise UsageError("--grad-accumulation: the step of --step-callable accumulates itself, or does not")
    return 1 if args.step_callable else found


def _inputs(settings: JobSettings) -> Sequence[str]:
    stated = settings.text("input")
    return split_inputs(stated) if stated else ()


def _batch(text: Optional[str]) -> int:
    if text is None:
        raise UsageError("no batch size; give it with --batch-size 128")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--batch-size must be a whole number of at least 1, not {text!r}")
    return int(text)


def _options_for_code(args: argparse.Namespace) -> List[str]:
    """Options that were used and mean nothing for a summary."""
    return [f"--{name}" for name in ("set", "python") if getattr(args, name)]
