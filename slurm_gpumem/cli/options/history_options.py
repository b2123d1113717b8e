"""A site's past jobs, for `gpumem what-if`: options, jobs, what was measured."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Dict, Optional, Sequence

from slurm_gpumem.errors import AccountingError, SlurmError, UsageError
from slurm_gpumem.simulation.gpu_use import RECORDS, GpuUse
from slurm_gpumem.slurm.state.history import (
    UNREADABLE,
    History,
    ask_history,
    history_command,
    left_out_text,
    parse_history,
)
from slurm_gpumem.slurm.state.nodes import GpuNodes, discover_cluster
from slurm_gpumem.terminal.say import say


def add_history_options(parser: argparse.ArgumentParser) -> None:
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


def checked_since(args: argparse.Namespace) -> Optional[str]:
    """The time of --since as sacct reads it; None after --command, which only prints what to run."""
    from slurm_gpumem.report.times import parse_time

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(parse_time(args.since)))
    if args.command:
        print(" ".join(history_command(since)) + " > sacct.txt")
        return None
    if args.max_slowdown is not None and args.max_slowdown <= 1:
        raise UsageError(f"--max-slowdown is a ratio above 1, like 1.15, not {args.max_slowdown:g}")
    return since


def history(path: Optional[Path], since: str) -> History:
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


def measured_use() -> Dict[str, GpuUse]:
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


def gpu_nodes() -> Sequence[GpuNodes]:
    """The cluster's nodes with GPUs; none where it is not at hand."""
    try:
        return discover_cluster()[0].gpu_nodes
    except SlurmError as error:
        say(f"the cluster's nodes are taken from its jobs: {error}")
        return ()
