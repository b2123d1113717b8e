"""A shell on a node, as a small job: what `gpumem doctor --nodes` asks nodes with."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set

from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.node_names import expand_names, fold_names
from slurm_gpumem.slurm.nodes import Record

_JOB_NAME = "gpumem-doctor"

_ABOUT_JOBS = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")


def outside_jobs(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment without what makes srun start a step of a job that we are in, or change its request."""
    return {k: v for k, v in environ.items() if k == "SLURM_CONF" or not k.startswith(_ABOUT_JOBS)}


def shell_on_node(node: Record, timeout_s: float) -> List[str]:
    """The command that runs `sh` on a node, with our stdin; it fails when the node is not free in time."""
    partition = node.get("Partitions", "").split(",")[0]
    return [
        "srun", "--quiet", f"--nodelist={node['NodeName']}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
        "--mem=64M", "--time=1", f"--immediate={max(1, round(timeout_s))}", f"--job-name={_JOB_NAME}",
        "--chdir=/", "--export=NONE", "--mpi=none", *([f"--partition={partition}"] if partition else []),
        "/bin/sh",
    ]  # fmt: skip


def jobs_on_nodes(client: SlurmClient, nodes: Sequence[str]) -> Set[str]:
    """Those of these nodes on which such a job runs, or is still being ended."""
    shown = client.run(
        ["squeue", "-h", f"--name={_JOB_NAME}", f"--nodelist={fold_names(nodes)}", "-o", "%N"], timeout_s=10
    )
    return {name for line in shown.split() for name in expand_names(line)}
