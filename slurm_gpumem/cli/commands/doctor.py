"""`gpumem doctor`: is this cluster set up to share GPUs safely? Answers like a Nagios check."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.cli.options import add_color
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.site.doctor.doctor import examine_cluster
from slurm_gpumem.terminal.colour import Palette, palette


def main(argv: List[str]) -> int:
    """Entry point of the subcommand: 0 ok, 1 warning, 2 critical, 3 unknown."""
    args = _parser().parse_args(argv)
    diagnosis = examine_cluster(args.ignore, here=args.here)
    if args.json:
        print(json.dumps(diagnosis.as_json(), indent=2))
    else:
        print("\n".join(_coloured(line, palette(args.color)) for line in diagnosis.text().split("\n")))
    return int(diagnosis.severity)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem doctor",
        description=__doc__,
        epilog="Exit codes: 0 ok, 1 warning, 2 critical, 3 unknown.",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="CHECK",
        help="leave out a finding that the site knows and accepts, like mixed-jobs; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--here",
        action="store_true",
        help="look at this host's hooks, driver and files only: for each node, with ssh, pdsh or clush",
    )
    add_color(parser)
    return parser


def _coloured(line: str, colours: Palette) -> str:
    """By the line's first words, which say it too."""
    if line.startswith("GPUMEM OK"):
        return colours.green(line)
    if line.startswith(("GPUMEM CRITICAL", "critical ")):
        return colours.red(line)
    return colours.yellow(line) if line.startswith(("GPUMEM ", "warning ", "unknown ")) else line
