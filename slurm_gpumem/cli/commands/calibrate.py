"""`gpumem calibrate`: measure this node's GPU and write the site's own entry for it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.estimators.gpus import site_gpu_file
from slurm_gpumem.site.calibration_context import calibrate, entry_of_kit, put_entry
from slurm_gpumem.terminal.say import say


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.kit and args.environment:
        raise UsageError("--kit takes what was measured, --environment measures: one of them")
    python = python_of(args.environment) if args.environment else sys.executable
    if args.kit:
        result = entry_of_kit(args.kit, args.name)
    else:
        result = calibrate(python, args.name, time.strftime("%Y-%m-%d"))
    print(result.as_toml(), end="")
    for note in result.notes:
        say(note)
    if args.print:
        return 0
    path: Path = args.output or site_gpu_file()
    try:
        put_entry(path, result)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}.\n"
            "The entry is printed above: put it there by hand, or use --output FILE."
        ) from None
    say(f"written to {path}; estimates use it from now on")
    return 0


def python_of(environment: Path) -> str:
    """The interpreter of an environment's folder."""
    python = environment.expanduser() / "bin" / "python"
    if not python.exists():
        raise UsageError(f"{environment}: has no bin/python; name a virtual or conda environment's folder")
    return str(python)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem calibrate",
        description="Measure this node's first visible GPU in under a minute: CUDA context, cuBLAS "
        "workspaces, rounding. Writes the site's own entry for it. Needs PyTorch.",
    )
    parser.add_argument(
        "--name", default="", help="name of the entry, as Slurm calls the type (default: after the GPU)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"file to write (default: {site_gpu_file()})"
    )
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="DIR",
        help="virtual or conda environment that jobs use, with PyTorch (default: this one)",
    )
    parser.add_argument(
        "--kit",
        type=Path,
        metavar="FILE",
        help="take what gpumem sitekit measured on such a GPU; none is needed",
    )
    parser.add_argument("--print", action="store_true", help="print the entry, write nothing")
    return parser
