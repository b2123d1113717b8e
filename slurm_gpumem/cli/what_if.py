"""`gpumem what-if`: what sharing would have done to the jobs that a site had."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.cli.history_options import (
    add_history_options,
    checked_since,
    gpu_nodes,
    history,
    measured_use,
)
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.policies import SLOWDOWN
from slurm_gpumem.simulation.pools import Pool, find_pools
from slurm_gpumem.simulation.what_if import Sharing, what_if
from slurm_gpumem.simulation.what_if_text import screen, what_if_json
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.text import count
from slurm_gpumem.units import parse_mib

MODES = ("mps", "mps-shared", "timeslice")


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    since = checked_since(args)
    if since is None:
        return 0
    past = history(args.from_file, since)
    records = {} if args.from_file else measured_use()
    memory = parse_mib(args.gpu_memory, default_unit="g") if args.gpu_memory else None
    pools = find_pools(past.jobs, () if args.from_file else gpu_nodes(), memory)
    if args.gpus:
        pools = _with_gpus(pools, args.gpus)
    with StatusLine() as line:
        sharing = Sharing(args.mode, args.placement, args.max_slowdown)
        found = what_if(pools, records, sharing, past.left_out, line)
    if args.json:
        print(json.dumps(what_if_json(found, names=args.names)))
        return 0
    print("\n".join(screen(found, args.max_slowdown, names=args.names)))
    return 0


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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem what-if",
        description="Play the jobs that this site had without and with sharing GPUs. "
        "Needs nothing but sacct; changes nothing.",
    )
    add_history_options(parser)
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="mps",
        help="how a GPU is shared (default: mps, a server for each user)",
    )
    parser.add_argument(
        "--placement", choices=("pack", "spread", "level"), default="pack",
        help="Slurm's default; LL_SHARED_GRES (from 23.11); that and LLN=YES on the partition",
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
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
