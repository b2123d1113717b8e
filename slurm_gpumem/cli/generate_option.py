"""`gpumem estimate hf:... --generate N`: weights and cache of a generating model, by its configuration."""

from __future__ import annotations

import argparse
from typing import List

from slurm_gpumem.cli.target_options import Subject
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.submission.job.settings import JobSettings
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.tracing.model.request import Generation, is_code, one_of, trace_generation, well_known
from slurm_gpumem.tracing.model.spec import BATCH, HUGGING_FACE, parse_arguments, parse_input, parse_target
from slurm_gpumem.tracing.script.run import Limits
from slurm_gpumem.units import parse_mib

_PRECISIONS = ("fp32", "tf32", "bf16")
_OF_TRAINING = ("optimizer", "loss", "checkpointing", "grad_accumulation", "channels_last", "evaluate",
                "batch_callable", "step_callable", "target_shape")  # fmt: skip


def generated_subject(text: str, args: argparse.Namespace, settings: JobSettings) -> Subject:
    """The model that `text` names, generating."""
    target = well_known(parse_target(text, parse_arguments(args.set))) if is_code(text) else None
    if target is None or target.kind != HUGGING_FACE:
        raise UsageError(
            f"--generate needs a Hugging Face model (hf:llama, hf:config.json), not {text}.\n"
            "Trace a script of your own instead: gpumem trace -- python generate.py"
        )
    if args.generate < 1:
        raise UsageError(f"--generate must be a whole number of at least 1, not {args.generate}")
    used = _options_of_training(args)
    if used:
        raise UsageError(f"{', '.join(used)}: of training; --generate is inference")
    precision = one_of(settings.text("precision") or "bf16", _PRECISIONS, "precision of --generate")
    batch = settings.stated_training().batch_size or settings.presets().batch_size or 1
    asked = Generation(
        target.place, target.arguments, args.head, batch, _prompt(args), args.generate, precision == "bf16"
    )
    limits = Limits(args.time_limit, memory_mib=parse_mib(args.memory_limit) if args.memory_limit else None)
    with StatusLine() as line:
        traced = trace_generation(
            asked, limits, args.python, lambda state, now: line(f"{text}: generating, {now:.0f} s")
        )
    # Parsed like any other file: the child ran untrusted code, so its output is checked.
    summary = read_summary(traced.summary.decode(errors="replace"))
    stated = StatedTraining(
        batch_size=batch,
        torch=settings.text("torch"),
        module_loading=settings.text("module-loading"),
        alloc_conf=settings.text("alloc-conf"),
        cublas_workspace=settings.text("cublas-workspace"),
    )
    return Subject(summary, training_job(summary, stated), True, traced.notes)


def _prompt(args: argparse.Namespace) -> int:
    """Tokens of a prompt."""
    given = [parse_input(text) for text in args.input]
    sizes = [size for size in given[0].sizes if size != BATCH] if len(given) == 1 else []
    if len(sizes) != 1:
        raise UsageError("--generate: how long are the prompts? Give the number of tokens: --input 1024")
    return sizes[0]


def _options_of_training(args: argparse.Namespace) -> List[str]:
    return [
        f"--{name.replace('_shape', '').replace('_', '-')}"
        for name in _OF_TRAINING
        if getattr(args, name, None)
    ]
