"""`gpumem what-if`: what sharing would have done to the jobs that a site had."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.cli.options.history_options import (
    add_history_options,
    checked_since,
    gpu_nodes,
    history,
    measured_use,
)
from slurm_gpumem.cli.options.parser import Parser
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.pools import Pool, find_pools
from slurm_gpumem.simulation.what_if import Sharing, what_if
from slurm_gpumem.simulation.what_if_text import screen, what_if_json
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import parse_mib

MODES = {"per-user": "mps", "shared": "mps-shared", "timeslice": "timeslice"}
"""[node] mps, and what the simulator calls it."""
PLACEMENTS = ("pack", "spread", "level")


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    since = checked_since(args)
    if since is None:
        return 0
    past = history(args.file, since)
    records = {} if args.file else measured_use()
    memory = parse_mib(args.gpu_memory, default_unit="g") if args.gpu_memory else None
    pools = find_pools(past.jobs, () if args.file else gpu_nodes(), memory)
    if args.gpus:
        pools = _with_gpus(pools, args.gpus)
    with StatusLine() as line:
        sharing = _sharing(args)
        found = what_if(pools, records, sharing, past.left_out, line)
    if args.json:
        print(json.dumps(what_if_json(found, names=args.names)))
        return 0
    print("\n".join(screen(found, sharing, names=args.names)))
    return 0


def _sharing(args: argparse.Namespace) -> Sharing:
    """What `gpumem setup` would write here, of a file what it writes for Slurm 23.11 and later; options count
    before that."""
    from slurm_gpumem.site.setup.render import how_shared, new_site

    how = new_site("level")
    if not args.file:
        from slurm_gpumem.site.hidden_nodes import with_hidden_nodes
        from slurm_gpumem.site.nodes import context_in_table, memory_in_table
        from slurm_gpumem.site.setup.setup import SetupOptions, propose
        from slurm_gpumem.site.snapshot import gather

        try:
            now = with_hidden_nodes(gather())
            plan = propose(SetupOptions(), now, memory_in_table, context_in_table).plan
            how = how_shared(plan, now.tables if now.files.get("gpumem.toml", "").strip() else None)
        except GpumemError as error:
            say(f"note: what gpumem setup would write here is not known: {error}\nA new site's is played.")
    mode = MODES.get(args.mode or how.mps, "timeslice")
    limit = args.max_slowdown or how.limit or SHARING.default("max_slowdown")
    return Sharing(mode, args.placement or how.placement, limit)


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
    default = "default: as gpumem setup would write it"
    parser.add_argument(
        "--mode",
        choices=tuple(MODES),
        help=f"how a GPU is shared, in the words of node.mps in gpumem.toml ({default})",
    )
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        help=f"Slurm's default; LL_SHARED_GRES (from 23.11); that and LLN=YES on the partition ({default})",
    )
    parser.add_argument("--max-slowdown", type=float, metavar="X", help=f"of the bounded case ({default})")
    parser.add_argument(
        "--names", action="store_true", help="name users and partitions instead of numbering them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
