"""`gpumem top`: your running jobs, what they use of their share, and who is beside them; live."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import List, Optional, Union

from slurm_gpumem.cli.options import add_color, add_units, seconds
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.config.node import load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.report.top.everybody import Everybody
from slurm_gpumem.report.top.own import OwnJobs, View
from slurm_gpumem.report.top.screen import Look, as_json, lines
from slurm_gpumem.slurm.client import COMMANDS
from slurm_gpumem.slurm.config_show import show_config
from slurm_gpumem.terminal.bars import speaks_unicode
from slurm_gpumem.terminal.colour import palette
from slurm_gpumem.terminal.progress import LiveScreen
from slurm_gpumem.units import sizes_in

_EVERY_S = 2.0
_STEP_S = 10.0
"""How long one look waits for steps on other nodes."""
_PIPE_WIDTH = 100


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    source = _source(args)
    live = sys.stdout.isatty() and not (args.once or args.json)
    try:
        with sizes_in(args.units):
            if live:
                return _watch(source, args)
            view = _settled(source)
            print(json.dumps(as_json(view)) if args.json else "\n".join(lines(view, _look(args, live=False))))
            return 0
    finally:
        source.close()


def _source(args: argparse.Namespace) -> Union[OwnJobs, Everybody]:
    if not args.me and _is_admin():
        return Everybody(load_accounting_config(), COMMANDS)
    config = load_node_config(site_config_path())
    return OwnJobs(config, COMMANDS, every_s=args.interval, steps=not args.no_steps)


def _is_admin() -> bool:
    """Root, or the user that Slurm's controller runs as."""
    if os.geteuid() == 0:
        return True
    try:
        # "slurm(64030)"
        return f"({os.geteuid()})" in show_config(COMMANDS).get("SlurmUser", "")
    except SlurmError:
        return False  # the look that follows says what is wrong


def _settled(source: Union[OwnJobs, Everybody]) -> View:
    """One look, with what steps on other nodes have to say."""
    view = source.look()
    if not source.waits():
        return view
    deadline = time.monotonic() + _STEP_S
    while source.waits() and time.monotonic() < deadline:
        time.sleep(0.05)
    return source.look()


def _watch(source: Union[OwnJobs, Everybody], args: argparse.Namespace) -> int:
    last: Optional[View] = None
    with LiveScreen() as screen:
        while True:
            try:
                last = source.look()
                shown = lines(last, _look(args, live=True))
            except SlurmError as error:
                # A controller that is busy for a while ends nobody's screen.
                shown = [str(error), "", *(lines(last, _look(args, live=True)) if last else [])]
            screen.draw(shown)
            # A step's first answer is worth a look at once.
            time.sleep(min(args.interval, 0.3) if source.waits() else args.interval)


def _look(args: argparse.Namespace, *, live: bool) -> Look:
    size = shutil.get_terminal_size((_PIPE_WIDTH, 24))
    return Look(
        width=size.columns,
        height=size.lines if live else None,
        unicode=speaks_unicode(),
        colours=palette(args.color),
        each_task=args.array,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem top",
        description=__doc__,
        epilog="On a job's node it reads what the node's sampler measures; from anywhere else it does so "
        "through one step in a job of yours on each node (srun --overlap), which ends with it. root and "
        "SlurmUser see everybody's jobs and all GPUs.",
    )
    parser.add_argument("--once", action="store_true", help="print it once (as in a pipe)")
    parser.add_argument("--json", action="store_true", help="once, for programs")
    parser.add_argument("--me", action="store_true", help="your own jobs, also as root or SlurmUser")
    parser.add_argument("--array", action="store_true", help="every task of an array on a line of its own")
    parser.add_argument("--no-steps", action="store_true", help="start no step in your jobs")
    parser.add_argument(
        "-i",
        "--interval",
        type=seconds,
        default=_EVERY_S,
        metavar="SECONDS",
        help="between looks (2)",
    )
    add_units(parser)
    add_color(parser)
    return parser
