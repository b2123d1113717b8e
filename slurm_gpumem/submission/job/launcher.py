"""Processes that a job's launcher starts: no more than GPUs, and all that share one GPU count."""

from __future__ import annotations

import re
from typing import Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.launchers import LAUNCHERS
from slurm_gpumem.slurm.submit.gpu_options import nodes_of
from slurm_gpumem.submission.submission import Submission


def processes_on_a_node(asked: Submission) -> Tuple[int, str]:
    """How many processes a launcher starts on each node, and which, where; (0, "") where none does."""
    nodes = nodes_of(asked.options)
    found = [
        (-(-int(match[1]) // (nodes if launcher.of_all_nodes else 1)), f"{where} {launcher.name}")
        for where, line in asked.commands
        for launcher in LAUNCHERS
        if launcher.processes
        for match in re.finditer(launcher.processes, line)
    ]
    return max(found, default=(0, ""))


def refuse_more_ranks_than_gpus(asked: Submission) -> None:
    """UsageError for a job whose launcher starts more processes than it has GPUs on a node."""
    processes, where = processes_on_a_node(asked)
    gpus = asked.gpus.gpus
    if 1 < gpus < processes:
        raise UsageError(
            f"{where} starts {processes} processes on each node, for {gpus} GPUs: NCCL takes one "
            f"process for each GPU.\nAsk for {processes} GPUs, or start {gpus}. Nothing was submitted."
        )


def ranks_on_one_gpu(asked: Submission) -> Tuple[int, Tuple[str, ...]]:
    """How many processes share the one GPU of a job, each of which needs what is estimated; a note."""
    processes, where = processes_on_a_node(asked)
    if processes < 2 or asked.gpus.gpus > 1:
        return 1, ()
    note = (
        f"{where} starts {processes} processes on one GPU: the memory of all of them is asked for. "
        "NCCL refuses two processes on one GPU; gloo does not"
    )
    return processes, (note,)
