"""`gpumem mig-plan`: which MIG layout would have served the jobs that a site had best."""

from __future__ import annotations

import argparse
import json
from typing import List, Optional

from slurm_gpumem.cli.history_options import (
    add_history_options,
    checked_since,
    gpu_nodes,
    history,
    measured_use,
)
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.mig_plan import MigPlan, mig_plan
from slurm_gpumem.simulation.mig_plan_text import plan_json, screen
from slurm_gpumem.simulation.pools import Pool, find_pools
from slurm_gpumem.simulation.what_if import assumptions, sources_of
from slurm_gpumem.slurm.history import PastJob, left_out_text
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import parse_mib


def main(argv: List[str]) -> int:
    """Entry point of the subcommand; 1 where no GPU here can be divided."""
    args = _parser().parse_args(argv)
    since = checked_since(args)
    if since is None:
        return 0
    past = history(args.from_file, since)
    jobs = list(past.jobs)
    if past.left_out:
        say(f"left out: {left_out_text(past.left_out)}")
    records = {} if args.from_file else measured_use()
    pools = _pools(jobs, args)
    sources = sources_of(jobs, records)
    plans: List[MigPlan] = []
    left: List[str] = []
    with StatusLine() as line:
        for pool in pools:
            found = None
            if not profile_name(pool.gpu_type):
                found = mig_plan(
                    pool, records, max_slowdown=args.max_slowdown, priors=assumptions(sources), progress=line
                )
            if found is None:
                left.append(_left_out(pool))
            else:
                plans.append(found)
    if args.json:
        print(json.dumps(plan_json(plans, sources, left)))
    else:
        shown = [screen(found, sources, args.max_slowdown) for found in plans]
        print("\n\n".join("\n".join(lines) for lines in [*shown, *([left] if left else [])]))
    return 0 if plans else 1


def _pools(jobs: List[PastJob], args: argparse.Namespace) -> List[Pool]:
    memory = parse_mib(args.gpu_memory, default_unit="g") if args.gpu_memory else None
    if not args.gpus:
        return find_pools(jobs, () if args.from_file else gpu_nodes(), memory)
    fleet = parse_fleet(args.gpus)
    largest = max(job.gpus for job in jobs)
    if largest > fleet.gpus:
        raise UsageError(f"--gpus {args.gpus}: a job had {count(largest, 'GPU')}, more than that")
    partitions = tuple(dict.fromkeys(job.partition for job in jobs))
    return [Pool(fleet, tuple(jobs), partitions, _type_in(args.gpus), True)]


def _type_in(text: str) -> Optional[str]:
    return text.rpartition("x")[2] if text.count("x") else None


def _left_out(pool: Pool) -> str:
    name = pool.gpu_type or pool.fleet.name
    if profile_name(pool.gpu_type):
        return (
            f"{name}: {count(len(pool.jobs), 'job')} ran on MIG instances, which are left out; "
            "--gpus 2x8xh200 names the GPUs to plan for, with all jobs"
        )
    return f"{pool.fleet.gpus} × {name}: left whole; its MIG profiles are in no table, or it has none"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem mig-plan",
        description="Find the MIG layout that would have served the jobs of this site best, by playing them "
        "again. Needs nothing but sacct; changes nothing.",
    )
    add_history_options(parser)
    parser.add_argument(
        "--max-slowdown", type=float, default=1.15, metavar="X",
        help="jobs that an instance would slow down more ask for a larger one (default: 1.15)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
