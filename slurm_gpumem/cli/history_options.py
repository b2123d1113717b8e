"""A site's past jobs, for `gpumem what-if` and `gpumem mig-plan`: options, jobs, what was measured."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.errors import AccountingError, SlurmError, UsageError
from slurm_gpumem.simulation.gpu_use import RECORDS, GpuUse
from slurm_gpumem.slurm.history import PastJob, ask_history, parse_history
from slurm_gpumem.slurm.nodes import GpuNodes, discover_cluster
from slurm_gpumem.terminal.say import say


def add_history_options(parser: argparse.ArgumentParser) -> None:
    """Which jobs, and on which GPUs."""
    parser.add_argument("--since", default="30d", metavar="TIME", help="jobs from then on (default: 30d)")
    parser.add_argument(
        "--from", dest="from_file", type=Path, metavar="FILE", help="output of sacct instead of asking it"
    )
    parser.add_argument("--command", action="store_true", help="print the sacct command for --from and stop")
    parser.add_argument("--gpus", metavar="N", help="the GPUs, where they cannot be seen: 16x8xa100-40gb")
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of a GPU, where its type does not tell it"
    )


def history(path: Optional[Path], since: str) -> List[PastJob]:
    """The jobs of a file, or of sacct; UsageError where there are none."""
    if path is None:
        jobs = ask_history(since)
        where = "sacct"
    else:
        where = str(path)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                jobs = parse_history(file, where)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if not jobs:
        raise UsageError(
            f"{where}: no job that ran on GPUs. AllocTRES must show gres/gpu: slurm.conf needs "
            "AccountingStorageTRES=gres/gpu (Slurm's default where GresTypes has gpu)."
        )
    return jobs


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


def since_moment(text: str) -> str:
    """A time of --since as sacct reads it."""
    from slurm_gpumem.report.times import parse_time

    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(parse_time(text)))
