"""`gpumem collect`: gather the nodes' job records, keep the site's index up to date; for cron, as root."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List

from slurm_gpumem.accounting.collect import Upkeep, keep_up
from slurm_gpumem.cli.options import age
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.terminal.progress import ProgressBar
from slurm_gpumem.terminal.say import say


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if os.geteuid() != 0:
        raise UsageError(
            "gpumem collect gathers everybody's records and must run as root; yours: gpumem report"
        )
    config = load_accounting_config()
    store = config.dir
    if not args.index_only and not store.is_dir():
        raise UsageError(
            f"{store}: no such folder; make it, or name another with accounting.dir in gpumem.toml"
        )
    spool = None if args.index_only else config.spool
    done = keep_up(config, spool, store, args.older, _bar, summaries=args.jobstats)
    for note in done.notes:
        say(note)
    if not args.quiet:
        sys.stdout.write(_line(done) + "\n")
    return 1 if done.collected and done.collected.failed else 0


def _bar() -> ProgressBar:
    return ProgressBar("indexing job records")


def _line(done: Upkeep) -> str:
    moved, fresh = done.collected, done.freshness
    first = f"{moved.records:,} records moved into books, {moved.kept:,} stay in the spool; " if moved else ""
    bad = f", {fresh.bad:,} bad" if fresh.bad else ""
    why = f" (without Slurm's accounting: {fresh.slurm})" if fresh.slurm else ""
    done_for = f"; {done.summaries.jobs:,} summaries for jobstats" if done.summaries.jobs else ""
    left = f"; {done.summaries.left:,} AdminComments left as they are" if done.summaries.left else ""
    return f"{first}{fresh.records:,} records indexed{bad}{why}{done_for}{left}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem collect", description=__doc__)
    parser.add_argument(
        "--older",
        type=age,
        default="2d",
        metavar="AGE",
        help="move records of jobs that ended this long ago or earlier (default 2d)",
    )
    parser.add_argument(
        "--index-only", action="store_true", help="move nothing, only bring the index up to date"
    )
    parser.add_argument(
        "--jobstats",
        action="store_true",
        help="write jobstats' summaries of jobs into Slurm's AdminComment, for jobstats and reportseff",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")
    return parser
