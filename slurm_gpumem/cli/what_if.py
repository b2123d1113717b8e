"""`gpumem what-if`: what sharing would have done to the jobs that a site had."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.errors import AccountingError, SlurmError, UsageError
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.gpu_use import RECORDS, GpuUse
from slurm_gpumem.simulation.policies import SLOWDOWN
from slurm_gpumem.simulation.pools import Pool, find_pools
from slurm_gpumem.simulation.what_if import Sharing, what_if
from slurm_gpumem.simulation.what_if_text import screen, what_if_json
from slurm_gpumem.slurm.history import UNREADABLE, History, ask_history, history_command, parse_history
from slurm_gpumem.slurm.nodes import GpuNodes, discover_cluster
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import parse_mib

MODES = ("mps", "mps-shared", "timeslice")


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    since = _since(args.since)
    if args.command:
        print(" ".join(history_command(since)) + " > sacct.txt")
        return 0
    if args.max_slowdown <= 1:
        raise UsageError(f"--max-slowdown is a ratio above 1, like 1.15, not {args.max_slowdown:g}")
    if args.html:
        from slurm_gpumem.report.html.render import need_jinja2

        need_jinja2()
        target = check_target(args.html, "what-if.html")
    history = _history(args.from_file, since)
    records = {} if args.from_file else _records()
    memory = parse_mib(args.gpu_memory, default_unit="g") if args.gpu_memory else None
    pools = find_pools(history.jobs, () if args.from_file else _nodes(), memory)
    if args.gpus:
        pools = _with_gpus(pools, args.gpus)
    with StatusLine() as line:
        sharing = Sharing(args.mode, args.placement, args.max_slowdown)
        found = what_if(pools, records, sharing, history.left_out, line)
    if args.json:
        print(json.dumps(what_if_json(found, names=args.names)))
        return 0
    print("\n".join(screen(found, args.max_slowdown, names=args.names)))
    if args.html:
        from slurm_gpumem.report.html.what_if import what_if_page

        save(target, what_if_page(found, args.max_slowdown, names=args.names))
        say(f"{args.html} written")
    return 0


def _history(path: Optional[Path], since: str) -> History:
    where = "sacct" if path is None else str(path)
    if path is None:
        found = ask_history(since)
    elif where == "-":
        found = parse_history(sys.stdin, where)
    else:
        try:
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                found = parse_history(file, where)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if found.jobs:
        return found
    if found.left_out:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in found.left_out.items())
        fix = " Times must be like 2026-11-15T08:30:00: unset SLURM_TIME_FORMAT for sacct."
        raise UsageError(
            f"{where}: no job that can be played. Left out: {reasons}." + fix * (UNREADABLE in found.left_out)
        )
    raise UsageError(
        f"{where}: no job that ran on GPUs. AllocTRES must show gres/gpu: slurm.conf needs "
        "AccountingStorageTRES=gres/gpu (Slurm's default where GresTypes has gpu)."
    )


def _records() -> Dict[str, GpuUse]:
    """What our own records measured, where there are any; before an installation there are none."""
    from slurm_gpumem.accounting.store import open_store
    from slurm_gpumem.config.accounting import load_accounting_config

    if not any(Path(folder).is_dir() for folder in load_accounting_config().folders):
        return {}
    try:
        with open_store() as store:
            return {
                str(row.job_id): GpuUse(row.peak_mib, row.sm_share, RECORDS)
                for row in store.select()
                if row.peak_mib
            }
    except AccountingError as error:
        say(f"job records are left out: {error}")
        return {}


def _nodes() -> Sequence[GpuNodes]:
    try:
        return discover_cluster()[0].gpu_nodes
    except SlurmError as error:
        say(f"the cluster's nodes are taken from its jobs: {error}")
        return ()


def _with_gpus(pools: List[Pool], text: str) -> List[Pool]:
    fleet = parse_fleet(text)
    if len(pools) > 1:
        raise UsageError(
            f"--gpus describes one kind of node, but these jobs ran on {len(pools)}; leave it out"
        )
    largest = max(job.gpus for job in pools[0].jobs)
    if largest > fleet.gpus:
        raise UsageError(f"--gpus {text}: a job had {count(largest, 'GPU')}, more than that")
    return [pools[0]._replace(fleet=fleet, counted=True)]


def _since(text: str) -> str:
    from slurm_gpumem.report.times import parse_time

    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(parse_time(text)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumem what-if",
        description="Play the jobs that this site had without and with sharing GPUs. "
        "Needs nothing but sacct; changes nothing.",
    )
    parser.add_argument("--since", default="30d", metavar="TIME", help="jobs from then on (default: 30d)")
    parser.add_argument(
        "--from",
        dest="from_file",
        type=Path,
        metavar="FILE",
        help="output of sacct instead of asking it; - reads stdin",
    )
    parser.add_argument("--command", action="store_true", help="print the sacct command for --from and stop")
    parser.add_argument("--gpus", metavar="N", help="the GPUs, where they cannot be seen: 16x8xa100-40gb")
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of a GPU, where its type does not tell it"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="mps",
        help="how a GPU is shared (default: mps, a server for each user)",
    )
    parser.add_argument(
        "--placement", choices=("pack", "spread"), default="pack",
        help="Slurm's default, or LL_SHARED_GRES (from 23.11)",
    )  # fmt: skip
    parser.add_argument(
        "--max-slowdown",
        type=float,
        default=SLOWDOWN,
        metavar="X",
        help=f"of the bounded case (default: {SLOWDOWN:g})",
    )
    parser.add_argument(
        "--names", action="store_true", help="name users and partitions instead of numbering them"
    )
    parser.add_argument("--html", metavar="FILE", help="also write a page")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
