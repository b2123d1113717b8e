"""The options that say which model code to trace and how; shared by summarize, fit and why."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.errors import TargetError, UsageError
from slurm_gpumem.estimators.types import LOSSES, OPTIMIZERS, PRECISIONS
from slurm_gpumem.tracing.child import outline
from slurm_gpumem.tracing.child.sandbox import Limits, Traced, trace_in_child
from slurm_gpumem.tracing.child.spec import (
    BATCH,
    FILE,
    HUGGING_FACE,
    NO_OPTIMIZER,
    TIMM,
    InputSpec,
    Target,
    TraceRequest,
    looks_like_file,
    parse_arguments,
    parse_input,
    parse_target,
    torch_dtype,
)
from slurm_gpumem.units import parse_mib

TARGET_HELP = (
    "train.py:build_model, package.module:build_model, timm:resnet50, hf:BertForSequenceClassification "
    "(class or model type of the installed transformers) or a config.json"
)
LOSS_NAMES = ("auto", *LOSSES, "bce", "sum")
SWITCHES = ("checkpointing", "channels_last", "evaluate")


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Everything that only matters when code is traced."""
    code = parser.add_argument_group("the model's code")
    code.add_argument(
        "-m", "--module", action="store_true", help="TARGET is a module's name, as for python -m"
    )
    code.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the callable, or field of the Hugging Face configuration (repeat)",
    )
    code.add_argument(
        "--head", default="", metavar="NAME", help="head of a Hugging Face model type (causal-lm, ...)"
    )
    data = parser.add_argument_group("what it is fed")
    data.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="one sample's shape: 3,224,224; with a name and a type: input_ids=128:int64; "
        "B where the batch is not first: 35,B,512 (repeat for several inputs)",
    )
    data.add_argument("--input-dtype", metavar="NAME", help="type of inputs that name none: fp32, int64, ...")
    data.add_argument(
        "--batch-callable", metavar="CODE", help="makes the batch: train.py:make_batch(batch_size)"
    )
    step = parser.add_argument_group("how it is trained")
    step.add_argument("--batch-size", metavar="N", help="samples per step")
    step.add_argument(
        "--optimizer",
        metavar="NAME",
        help=f"{', '.join(OPTIMIZERS)}, none (inference), or CODE taking the parameters (default: adam)",
    )
    step.add_argument("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (default: fp32)")
    step.add_argument(
        "--loss", metavar="NAME", help=f"{', '.join(LOSS_NAMES)}, or CODE taking output and target"
    )
    step.add_argument(
        "--target", dest="target_shape", metavar="SHAPE", help="what the loss compares with, like --input"
    )
    step.add_argument(
        "--step-callable", metavar="CODE", help="one training step: train.py:step(model, batch, optimizer)"
    )
    step.add_argument("--checkpointing", action="store_true", help="activation checkpointing of every block")
    step.add_argument("--channels-last", action="store_true", help="model and input in channels_last")
    step.add_argument(
        "--eval", dest="evaluate", action="store_true", help="an evaluation pass after the step as well"
    )
    child = parser.add_argument_group("the process that runs it")
    child.add_argument(
        "--time-limit", type=_seconds, default=120.0, metavar="S", help="seconds (default: 120)"
    )
    child.add_argument("--memory-limit", metavar="SIZE", help="host memory (default: 3/4 of what is free)")
    child.add_argument("--python", metavar="PATH", help="another environment's python, with its torch")
    child.add_argument("--show-output", action="store_true", help="what the code prints, on stderr")


def is_code(text: str) -> bool:
    """Whether an argument names code to trace rather than a summary's file."""
    place, colon, _ = text.rpartition(":")
    if text.startswith((f"{HUGGING_FACE}:", f"{TIMM}:")):
        return True
    if os.path.isfile(text):
        return text.endswith(".py")
    named = bool(colon and place) and (looks_like_file(place) or "/" not in text)
    return named or text.endswith(".py")


def trace_request(
    target: str, args: argparse.Namespace, defaults: Sequence[Tuple[str, str]] = ()
) -> TraceRequest:
    """What the options ask for; `defaults` are (name, value) of settings that the options leave open."""
    chosen = {**dict(defaults), **{k: v for k, v in vars(args).items() if v not in (None, [])}}
    arguments = parse_arguments(args.set)
    named = _from_catalogue(parse_target(target, arguments, module=args.module))
    dtype = torch_dtype(args.input_dtype) if args.input_dtype not in (None, "auto") else ""
    inputs = tuple(_with_dtype(parse_input(text), dtype) for text in args.input)
    optimizer, optimizer_code = _name_or_code(
        chosen.get("optimizer", "adam"), (*OPTIMIZERS, NO_OPTIMIZER), "optimizer"
    )
    loss, loss_code = _name_or_code(chosen.get("loss", "auto"), LOSS_NAMES, "loss")
    precision = chosen.get("precision", "fp32").lower().replace("_", "-")
    if precision not in PRECISIONS:
        from slurm_gpumem.errors import UnknownNameError

        raise UnknownNameError("precision", precision, list(PRECISIONS))
    return TraceRequest(
        target=named,
        batch_size=_batch(chosen.get("batch_size")),
        inputs=inputs,
        batch_callable=parse_target(args.batch_callable) if args.batch_callable else None,
        step_callable=parse_target(args.step_callable) if args.step_callable else None,
        loss=loss,
        loss_callable=loss_code,
        target_input=_target(args.target_shape),
        optimizer=optimizer,
        optimizer_callable=optimizer_code,
        precision=precision,
        checkpointing=args.checkpointing,
        channels_last=args.channels_last,
        evaluate=args.evaluate,
        head=args.head,
    )


def trace_code(request: TraceRequest, args: argparse.Namespace) -> Traced:
    """Trace it in a child process, with a line of progress where somebody is watching."""
    _check_files(request)
    if args.python is None:
        _need_torch()
    limits = Limits(args.time_limit, parse_mib(args.memory_limit) if args.memory_limit else None)
    progress = _Progress(request.target.label)
    try:
        return trace_in_child(
            request, limits, python=args.python, show_output=args.show_output, progress=progress.show
        )
    finally:
        progress.clear()


def _check_files(request: TraceRequest) -> None:
    """Slips in names are told at once, not after torch is imported."""
    target = request.target
    if target.kind == FILE:
        path = Path(target.place)
        outline.check(path, target.attribute or outline.choose(path, path.name), target.arguments)
    for other in (request.batch_callable, request.step_callable, request.loss_callable):
        if other is not None and other.kind == FILE:
            outline.outline(Path(other.place))


def _need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise TargetError(
            "tracing a model needs PyTorch, which is not installed for this Python.\n"
            "pip install 'slurm-gpumem[torch]', or name your environment's: --python ~/env/bin/python"
        )


class _Progress:
    """One line on a terminal that says what is going on; nothing in a pipe."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._on = sys.stderr.isatty()
        self._shown = ""

    def show(self, phase: str, seconds: float) -> None:
        if self._on and seconds >= 1:
            line = f"{self._label}: {phase}, {seconds:.0f} s"
            if line != self._shown:
                self._shown = line
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _name_or_code(text: str, known: Sequence[str], what: str) -> Tuple[str, Optional[Target]]:
    name = text.lower().replace("_", "-")
    if name in known:
        return name, None
    if ":" in text:
        return "callable", parse_target(text)
    from slurm_gpumem.errors import UnknownNameError

    raise UnknownNameError(what, text, list(known))


def _from_catalogue(target: Target) -> Target:
    """A well-known Hugging Face name ("gpt2-medium") as its class and sizes; others stay as they are."""
    if target.kind != HUGGING_FACE or target.place.endswith(".json"):
        return target
    from slurm_gpumem.tracing.hub_names import known_model

    found = known_model(target.place)
    if found is None:
        return target
    name, sizes = found
    return Target(HUGGING_FACE, name, "", {**sizes, **target.arguments})


def _with_dtype(one: InputSpec, dtype: str) -> InputSpec:
    return one if one.dtype else InputSpec(one.sizes, one.name, dtype)


def _target(text: Optional[str]) -> Optional[InputSpec]:
    if text is None:
        return None
    if text in ("", "scalar"):
        return InputSpec((BATCH,))
    return parse_input(text)


def _batch(text: Optional[str]) -> int:
    if text is None:
        raise UsageError("no batch size; give it with --batch-size 128")
    if not str(text).isascii() or not str(text).isdigit() or int(text) < 1:
        raise UsageError(f"--batch-size must be a whole number of at least 1, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def options_given(args: argparse.Namespace) -> List[str]:
    """Options of this group that were used; they mean nothing for a summary."""
    names = ("set", "head", "input", "batch_callable", "step_callable", "target_shape", "python", "module")
    return [f"--{name.replace('_shape', '').replace('_', '-')}" for name in names if getattr(args, name)]
