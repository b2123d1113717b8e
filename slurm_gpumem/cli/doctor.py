"""`gpumem doctor`: is this cluster set up to share GPUs safely? Answers like a Nagios check."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.screen_options import add_color
from slurm_gpumem.site.ask_nodes import SSH
from slurm_gpumem.site.doctor import examine_cluster
from slurm_gpumem.site.look import Ask
from slurm_gpumem.terminal.colour import Palette, palette


def main(argv: List[str]) -> int:
    """Entry point of the subcommand: 0 ok, 1 warning, 2 critical, 3 unknown."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.through != SSH and args.nodes is None:
        parser.error("--through says how nodes are asked; add --nodes")
    if not 1 <= args.timeout <= 600:
        parser.error("--timeout is between 1 and 600 seconds")
    diagnosis = examine_cluster(Ask(args.nodes, args.through, args.timeout), args.ignore)
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
        "--nodes",
        nargs="?",
        const="",
        metavar="LIST",
        help="also ask these nodes (n[1-4,7]; all with shares if no LIST is given), with ssh",
    )
    parser.add_argument(
        "--through",
        metavar="COMMAND",
        default=SSH,
        help="the command that asks them (default '%(default)s')",
    )
    parser.add_argument(
        "--timeout", type=float, default=20.0, metavar="S", help="how long to wait for a node (default 20)"
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
