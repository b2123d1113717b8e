"""`gpumem sitekit`: try what gpumem promises on this GPU, and write what held into one file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import List

from slurm_gpumem.cli.commands.calibrate import python_of
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.files import write_atomic
from slurm_gpumem.formats.kit_file import read_kit_file
from slurm_gpumem.site.calibration_context import entry_of, warnings_of
from slurm_gpumem.site.kit.run import Kit
from slurm_gpumem.site.kit.text import HEAD, page_row, table_lines
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.show or args.rows:
        kits = [read_kit_file(path) for path in args.show or args.rows]
        lines = (
            [*HEAD, *map(page_row, kits)]
            if args.rows
            else [line for kit in kits for line in table_lines(kit)]
        )
        print("\n".join(lines))
        return 0
    python = python_of(args.environment) if args.environment else sys.executable
    for name in _ALLOCATOR:
        if os.environ.pop(name, None):
            say(f"{name} is left out: estimates assume the allocator's defaults")
    with StatusLine() as line:
        kit = Kit(python, lambda text: line(f"gpumem sitekit: {text} ..."), say)
        stopped = kit.run()
    found = kit.found()
    if found.gpu is None or found.context is None:
        say("interrupted before anything was measured; no file was written")
        return 128 + stopped
    name = entry_of(found.gpu, found.context, name="", by="", notes=()).name
    path: Path = args.output or Path(f"gpumem-kit-{name}.json")
    print("\n".join(table_lines(found)))
    for text in warnings_of(found):
        say(text)
    try:
        write_atomic(path, found.to_json(), mode=0o644)
    except OSError as error:
        print(found.to_json(), end="")
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}. What it would hold is above."
        ) from None
    say(f"written to {path}; to use it: gpumem calibrate --kit {path}")
    return 128 + stopped if stopped else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem sitekit",
        description="On an idle GPU, in about five minutes: the CUDA context, memory limits and ends under\n"
        "MPS, and 20 small trainings against their estimates. Changes no setting, needs no root. Writes\n"
        "one file without names of users, hosts or paths, for gpumem calibrate --kit and for others.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="DIR",
        help="virtual or conda environment that jobs use, with PyTorch (default: this one)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: gpumem-kit-TYPE.json")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print what is in such files")
    shown.add_argument("--rows", type=Path, nargs="+", metavar="FILE", help="their rows of the page of GPUs")
    return parser
