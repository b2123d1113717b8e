"""`gpumem setup`: what a site must configure to share its GPUs, as a diff; changes nothing by itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import List, Optional

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.schema import MODES
from slurm_gpumem.devcluster.cluster import slurm_root_in_use
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.site.nodes import memory_in_table
from slurm_gpumem.site.setup.hook_files import SUFFIX
from slurm_gpumem.site.setup.plan import PACK, SPREAD
from slurm_gpumem.site.setup.setup import HOOKS, SetupOptions, propose, summary_lines, write_files
from slurm_gpumem.site.setup.trial_run import Verdict, try_proposal
from slurm_gpumem.site.snapshot import Snapshot, gather, with_hidden_nodes
from slurm_gpumem.terminal.say import say
from slurm_gpumem.units import parse_mib


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    options = SetupOptions(
        gpus=tuple(args.gpu),
        gres=args.gres,
        mode=args.mode,
        shard_mib=None if args.shard is None else parse_mib(args.shard),
        reserve_mib=None if args.reserve is None else parse_mib(args.reserve),
        mps_per_gpu=args.mps_per_gpu,
        placement=args.placement,
        slurm_root=slurm_root_in_use(),
        cli_filter=not args.no_cli_filter,
    )
    snapshot = None if args.offline else _running()
    proposal = propose(options, snapshot, memory_in_table)
    for line in summary_lines(proposal.plan):
        say(line)
    diff = proposal.diff()
    if diff and not args.untried and not _passes(try_proposal(proposal, snapshot, options.slurm_root)):
        return 1
    print(
        diff or "# Nothing to change: the running configuration is what this would set up.",
        end="" if diff else "\n",
    )
    for note in proposal.notes:
        say(f"note: {note}")
    if args.output:
        write_files(proposal, Path(args.output))
        say(
            f"files written to {args.output}; nothing else was changed\n"
            f"Hooks for the nodes are in {args.output}/{HOOKS} (gpumem docs node says how to install them)"
        )
        if proposal.parts:
            say(f"*{SUFFIX} are not whole files: do not copy them over yours; their first lines say more")
    elif diff:
        say("nothing was changed; --output DIR writes the files into a fresh folder")
    return 0


def _passes(verdict: Verdict) -> bool:
    """Whether a configuration may be shown; says what came of its trial."""
    for line in verdict.broken:
        say(line)
    if verdict.broken:
        say("this configuration would break the cluster, so it is not printed; nothing was changed")
        return False
    if verdict.not_tried:
        say(f"not tried: {verdict.not_tried}")
        return not verdict.broken_before
    say(verdict.said)
    return True


def _running() -> Optional[Snapshot]:
    try:
        return with_hidden_nodes(gather())
    except SlurmError as error:
        say(f"{error}\nGoing on without a running cluster.")
        return None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem setup", description=__doc__)
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="[NODES=]TYPE:COUNT:MEMORY",
        help="GPUs of a node, like a100:4:40G or 'n[1-4]=a100:4:40G'; may be repeated. "
        "Without it: what the running cluster has, else what nvidia-smi shows here",
    )
    parser.add_argument(
        "--gres", choices=("shard", "mps"), help="how GPUs are divided (default: as they are now, else shard)"
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="which jobs share: none, those that ask, also those that ran before, also those that are "
        "estimated (default: what gpumem.toml says, else opt-in)",
    )
    parser.add_argument(
        "--shard",
        metavar="SIZE",
        help="GPU memory of one shard (default: that of the shards that the cluster has, else 1G)",
    )
    parser.add_argument(
        "--reserve",
        metavar="SIZE",
        help="GPU memory kept back for driver and MPS servers (default 1G; GPUs that the running cluster "
        "divides already stay as they are)",
    )
    parser.add_argument(
        "--mps-per-gpu", type=int, default=100, metavar="N", help="units of one GPU with --gres mps"
    )
    parser.add_argument(
        "--placement",
        choices=(SPREAD, PACK),
        help="which GPU of a node a shared job goes to: the one with the most free shares, or the first with "
        "enough, which keeps whole GPUs free (default: spread where Slurm has it, from 23.11 on)",
    )
    parser.add_argument(
        "--no-cli-filter",
        action="store_true",
        help="leave plain sbatch, srun and salloc as they are: without the files of Slurm's submission "
        "filter and CliFilterPlugins",
    )
    parser.add_argument("--offline", action="store_true", help="do not ask a running Slurm")
    parser.add_argument("--untried", action="store_true", help="do not try the configuration on a copy first")
    parser.add_argument("--output", metavar="DIR", help="write the files into this fresh folder")
    return parser
