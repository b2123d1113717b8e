"""`gpumem setup`: what a site must configure to share its GPUs, as a diff; --apply, and --undo."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import List, Optional

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.schema import MODES
from slurm_gpumem.devcluster.cluster import slurm_root_in_use
from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.site.nodes import memory_in_table
from slurm_gpumem.site.setup.hook_files import SUFFIX
from slurm_gpumem.site.setup.journal import FOLDER, KEPT, apply_files, undo
from slurm_gpumem.site.setup.plan import ONE_SERVER, PACK, PER_USER, SPREAD
from slurm_gpumem.site.setup.questions import asked, confirmed, on_terminal
from slurm_gpumem.site.setup.setup import (
    HOOKS,
    Proposal,
    SetupOptions,
    propose,
    summary_lines,
    write_files,
)
from slurm_gpumem.site.setup.setup_notes import HOOKS_NOTE
from slurm_gpumem.site.setup.trial_run import Verdict, try_proposal
from slurm_gpumem.site.snapshot import Snapshot, gather, with_hidden_nodes
from slurm_gpumem.slurm.client import COMMANDS
from slurm_gpumem.slurm.config_show import show_config
from slurm_gpumem.terminal.say import say
from slurm_gpumem.units import parse_mib


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.undo:
        return _undo()
    snapshot = None if args.offline else _running()
    options = SetupOptions(
        gpus=tuple(args.gpu),
        gres=args.gres,
        mode=args.mode,
        mps=args.mps,
        partitions=tuple(name for names in args.partition for name in names.split(",")),
        shard_mib=None if args.shard is None else parse_mib(args.shard),
        reserve_mib=None if args.reserve is None else parse_mib(args.reserve),
        mps_per_gpu=args.mps_per_gpu,
        placement=args.placement,
        slurm_root=slurm_root_in_use(),
        cli_filter=not args.no_cli_filter,
        hooks=args.hooks,
        applies=args.apply,
    )
    if snapshot is not None and on_terminal():
        options = asked(options, snapshot)
    if options.mode is None and snapshot is not None and "mode" not in snapshot.policy:
        options = replace(options, mode="observe")
    proposal = propose(options, snapshot, memory_in_table)
    for line in summary_lines(proposal.plan):
        say(line)
    diff, changes = proposal.diff(), proposal.changes()
    if changes and not args.untried and not _passes(try_proposal(proposal, snapshot, options.slurm_root)):
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
    elif args.apply:
        return _apply(proposal, snapshot, options)
    elif changes:
        say("nothing was changed; --apply does it, --undo takes it back; --output DIR writes the files")
    return 0


def _apply(proposal: Proposal, snapshot: Optional[Snapshot], options: SetupOptions) -> int:
    """Write what is to change, on this host."""
    folder = snapshot.folder if snapshot else None
    unread = sorted(name for name in proposal.parts if name in proposal.changes())
    if folder is None or unread:
        raise UsageError(
            f"{', '.join(unread) or 'slurm.conf'} cannot be read here; run gpumem setup --apply as root "
            "where slurmctld runs"
        )
    changes = {name: _bytes(text) for name, text in proposal.changes().items()}
    if not changes:
        return 0
    if not confirmed("Make these changes?"):
        say("nothing was changed")
        return 1
    seen = {name: _bytes(proposal.current[name]) if name in proposal.current else None for name in changes}
    names = apply_files(folder, changes, seen)
    say(f"written in {folder}: {', '.join(names)}\n{folder / FOLDER} has what was there; --undo puts it back")
    restarts = any(note.startswith(("GresTypes", "SelectType")) for note in proposal.notes)
    steps = ["the other hosts get their files as always, in the same order: slurm.conf last"]
    if restarts or proposal.waits_for:
        steps.append("systemctl restart slurmctld, then slurmd on every node (jobs that run go on)")
    elif HOOKS_NOTE in proposal.notes and "slurm.conf" in changes:
        steps.append("scontrol reconfigure")
    else:
        steps.append("no daemon needs a restart; jobs submitted from now on are concerned")
    if proposal.waits_for:
        # Named, because gpumem.toml says observe by then, and nobody is asked again.
        named = f" --partition {','.join(options.partitions)}" if options.partitions else ""
        kept = "" if options.cli_filter else " --no-cli-filter"
        again = f"gpumem setup --apply --mode {proposal.waits_for}{named}{kept}"
        steps.append(f"then, as no job shares before: {again}")
    say("\n".join(["next:", *steps]))
    return 0


def _undo() -> int:
    """Take back what --apply changed on this host; also where Slurm does not answer."""
    folder = _folder()
    if not confirmed(f"Take back what --apply changed in {folder}?"):
        say("nothing was changed")
        return 1
    undone = undo(folder)
    if undone is None:
        say(f"nothing to undo: {folder / FOLDER} is not there")
        return 0
    say(f"as before in {folder}: {', '.join(undone.files)}")
    for name in undone.kept:
        say(f"note: {name} had edits of yours; it is {name}{KEPT} now, which nothing reads")
    for name, line in undone.lost:
        say(f"note: {name}: went with our words: {line} (the file as it was: {name}{KEPT})")
    if "slurm.conf" in undone.files:
        say(
            "next: slurm.conf and gres.conf on the other hosts, too, as you always do\n"
            "If the cluster has shares: restart slurmctld, then slurmd on every node, once no job has any "
            "(squeue -O jobid,tres-per-node | grep -E 'shard|mps')"
        )
    return 0


def _folder() -> Path:
    """Where slurm.conf is: by the running cluster, else by SLURM_CONF, else Slurm's own default."""
    try:
        conf = show_config(COMMANDS).get("SLURM_CONF", "")
    except SlurmError as error:
        conf = os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
        say(f"{error}\nGoing on with {conf}.")
    folder = Path(conf).parent
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: is not on this host; run it where --apply ran, with SLURM_CONF if need be"
        )
    return folder


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


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
        "estimated (default: what gpumem.toml says, else observe)",
    )
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="NAMES",
        help="the partitions whose jobs may share, the others are observed (default: all with GPUs)",
    )
    parser.add_argument(
        "--mps",
        choices=(PER_USER, ONE_SERVER),
        help="an MPS server for each user, so that faults end no stranger's job, or one for all, with which "
        "jobs end sooner (default: what gpumem.toml says, else per-user)",
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
    parser.add_argument(
        "--hooks",
        action="store_true",
        help="have slurm.conf run the nodes' hooks, which limit and measure jobs, once slurm-gpumem-node is "
        "on every node with GPUs",
    )
    parser.add_argument("--offline", action="store_true", help="do not ask a running Slurm")
    parser.add_argument("--untried", action="store_true", help="do not try the configuration on a copy first")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--output", metavar="DIR", help="write the files into this fresh folder")
    does.add_argument(
        "--apply", action="store_true", help="change this host's files, and keep them as they were for --undo"
    )
    does.add_argument(
        "--undo", action="store_true", help="take back what --apply changed; your edits since stay"
    )
    return parser
