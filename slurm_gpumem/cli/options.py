"""What several commands' options have in common: types of values, and the job's settings."""

from __future__ import annotations

import argparse
import os
import sys

from slurm_gpumem.config.schema import JOB_KEYS
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import OPTIMIZERS, PRECISIONS
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.summaries.input_shape import SEVERAL
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.colour import CHOICES
from slurm_gpumem.units import UNITS, parse_seconds

COVERAGE_HELP = "share of jobs like it that the request is to hold for, like 0.9 (default: the site's)"


def help_formatter(prog: str) -> argparse.HelpFormatter:
    """argparse's own, told the terminal's width: it would load shutil for it with the first option."""
    try:
        columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size().columns
    except (ValueError, OSError):
        columns = 80
    return argparse.HelpFormatter(prog, width=columns - 2)


def whole(text: str) -> int:
    """A whole number."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """A time that something may take."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def age(text: str) -> float:
    """Seconds of "2d", "12h" or "0s"."""
    try:
        return float(parse_seconds(text))
    except UsageError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age; write it like 2d, 12h or 0s") from None


def add_torch(group: argparse._ActionsContainer) -> None:
    """What decides the CUDA context on a GPU that nobody calibrated."""
    group.add_argument("--torch", metavar="VERSION", help="the job's PyTorch, like 2.6 or 2.6.0+cu124")


def add_gpus(parser: argparse._ActionsContainer) -> None:
    """The number of GPUs that a job runs on."""
    parser.add_argument(
        "--gpus", type=positive, metavar="N", help="GPUs of the job (default: as traced, else 1)"
    )


def add_training_options(step: argparse._ActionsContainer, optimizers: str = "") -> None:
    """How a model is trained, for every command that answers about one."""
    step.add_argument("--batch-size", metavar="N", help="samples per GPU and step (default: the summary's)")
    step.add_argument(
        "--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)}{optimizers} (default: adam)"
    )
    step.add_argument("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (default: fp32)")
    step.add_argument("--grad-accumulation", metavar="N", help="batches per optimizer step (default: 1)")
    step.add_argument("--checkpointing", action="store_true", help="activation checkpointing of every block")


def add_input(parser: argparse._ActionsContainer) -> None:
    """What goes into the model."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="one sample's shape: 3x224x224; with a name and a type: input_ids=128:int64; B where the batch "
        "is not first: 35,B,512 (repeat for several inputs); also where a summary has no shapes",
    )


def add_set(parser: argparse._ActionsContainer) -> None:
    """What the model is built with."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the callable, or field of the Hugging Face configuration (repeat)",
    )


def add_python(parser: argparse._ActionsContainer) -> None:
    """Where the model's libraries are."""
    parser.add_argument("--python", metavar="PATH", help="another environment's python, with its torch")


def add_gpu(parser: argparse._ActionsContainer) -> None:
    """The type of GPU to answer for."""
    parser.add_argument("--gpu", metavar="TYPE", help="GPU type (default: the cluster's)")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Output for programs."""
    parser.add_argument("--json", action="store_true", help="machine-readable, with its schema's name")


def add_color(parser: argparse._ActionsContainer) -> None:
    """`--color`; without it terminals get colours, unless NO_COLOR is set."""
    parser.add_argument("--color", choices=CHOICES, default="auto", help="colours (default: on a terminal)")


def add_units(parser: argparse._ActionsContainer) -> None:
    """`--units`; without it sizes are in GiB, small ones in MiB."""
    parser.add_argument("--units", choices=list(UNITS), help="write all sizes in this unit")


def own_options(args: argparse.Namespace) -> OwnOptions:
    """The options given, by the key that the other layers of the configuration have for them."""
    given = {key: getattr(args, key.replace("-", "_"), None) for key in JOB_KEYS}
    if isinstance(given["input"], list):
        given["input"] = SEVERAL.join(given["input"])
    return OwnOptions(
        {
            key: "yes" if value is True else str(value)
            for key, value in given.items()
            if value and not isinstance(value, list)
        }
    )


def _standard_input() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("-: nothing comes on standard input; pipe a summary into it, or name its file")
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("-: standard input is empty; pipe a summary into it, or name its file")
    return text if "\n" in text else text + "\n"


def named_summary(path: str) -> ModelSummary:
    """The summary of a file, or of standard input (-)."""
    return read_summary(_standard_input() if path == "-" else path)
