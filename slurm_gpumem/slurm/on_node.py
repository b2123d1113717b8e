"""A shell on a node, as a small job: what `gpumem doctor --nodes` asks nodes with."""

from __future__ import annotations

from typing import List

from slurm_gpumem.slurm.nodes import Record


def shell_on_node(node: Record, timeout_s: float) -> List[str]:
    """The command that runs `sh` on a node, with our stdin; it fails when the node is not free in time."""
    partition = node.get("Partitions", "").split(",")[0]
    return [
        "srun", "--quiet", f"--nodelist={node['NodeName']}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
        "--mem=64M", "--time=1", f"--immediate={max(1, round(timeout_s))}", "--job-name=gpumem-doctor",
        "--chdir=/", "--export=NONE", "--mpi=none", *([f"--partition={partition}"] if partition else []),
        "/bin/sh",
    ]  # fmt: skip
