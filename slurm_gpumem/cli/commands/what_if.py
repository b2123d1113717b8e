"""`gpumem what-if`: what sharing would have done to the jobs that a site had."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.errors import AccountingError, GpumemError, SlurmError, UsageError
from slurm_gpumem.simulation.pools import Pool, find_pools
from slurm_gpumem.simulation.what_if import RECORDS, GpuUse, Sharing, what_if
from slurm_gpumem.simulation.what_if_text import parse_fleet, screen, what_if_json
from slurm_gpumem.slurm.state.history import (
    UNREADABLE,
    History,
    ask_history,
    history_command,
    left_out_text,
    parse_history,
)
from slurm_gpumem.slurm.state.nodes import GpuNodes, discover_cluster
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
    since = _checked_since(args)
    if since is None:
        return 0
    past = _history(args.file, since)
    records = {} if args.file else _measured_use()
    memory = parse_mib(args.gpu_memory, default_unit="g") if args.gpu_memory else None
    pools = find_pools(past.jobs, () if args.file else _gpu_nodes(), memory)
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
        from slurm_gpumem.site.nodes import memory_in_table
        from slurm_gpumem.site.setup.setup import SetupOptions, propose
        from slurm_gpumem.site.snapshot import gather, with_hidden_nodes

        try:
            now = with_hidden_nodes(gather())
            plan = propose(SetupOptions(), now, memory_in_table).plan
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


def _add_history_options(parser: argparse.ArgumentParser) -> None:
    """Which jobs, and on which GPUs."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="output of sacct instead of asking it; - reads stdin",
    )
    parser.add_argument("--since", default="30d", metavar="TIME", help="jobs from then on (default: 30d)")
    parser.add_argument("--command", action="store_true", help="print the sacct command for FILE and stop")
    parser.add_argument("--gpus", metavar="N", help="the GPUs, where they cannot be seen: 16x8xa100-40gb")
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of a GPU, where its type does not tell it"
    )


def _checked_since(args: argparse.Namespace) -> Optional[str]:
    """The time of --since as sacct reads it; None after --command, which only prints what to run."""
    from slurm_gpumem.report.times import parse_time

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(parse_time(args.since)))
    if args.command:
        print(" ".join(history_command(since)) + " > sacct.txt")
        return None
    if args.max_slowdown is not None and args.max_slowdown <= 1:
        raise UsageError(f"--max-slowdown is a ratio above 1, like 1.15, not {args.max_slowdown:g}")
    return since


def _history(path: Optional[Path], since: str) -> History:
    """The jobs of a file (- is stdin), or of sacct; UsageError where there are none."""
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
        reasons = left_out_text(found.left_out)
        fix = " Times must be like 2026-11-15T08:30:00: unset SLURM_TIME_FORMAT for sacct."
        raise UsageError(
            f"{where}: no job that can be played. Left out: {reasons}." + fix * (UNREADABLE in found.left_out)
        )
    raise UsageError(
        f"{where}: no job that ran on GPUs. AllocTRES must show gres/gpu: slurm.conf needs "
        "AccountingStorageTRES=gres/gpu (Slurm's default where GresTypes has gpu)."
    )


def _measured_use() -> Dict[str, GpuUse]:
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


def _gpu_nodes() -> Sequence[GpuNodes]:
    """The cluster's nodes with GPUs; none where it is not at hand."""
    try:
        return discover_cluster()[0].gpu_nodes
    except SlurmError as error:
        say(f"the cluster's nodes are taken from its jobs: {error}")
        return ()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem what-if",
        description="Play the jobs that this site had without and with sharing GPUs. "
        "Needs nothing but sacct; changes nothing.",
    )
    _add_history_options(parser)
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
