"""Jobs in a dev cluster: how tests submit them and see where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.devcluster.cluster import Cluster


def submit(cluster: Cluster, *options: str, command: str, output: str = "/dev/null", **run: Any) -> str:
    """The id of a new batch job that runs `command`."""
    argv = ["sbatch", "--parsable", f"--output={output}", *options, f"--wrap={command}"]
    done = cluster.run(argv, **{"cwd": Path("/"), **run})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit_shared(cluster: Cluster, shards: int, command: str, *options: str, **run: Any) -> str:
    """The id of a new job with a part of a GPU and of its node's CPUs and memory."""
    return submit(
        cluster, f"--gres=shard:{shards}", "--cpus-per-task=2", "--mem=8G", *options, command=command, **run
    )


def jobs_on_gpus(cluster: Cluster) -> Dict[str, list[str]]:
    """Which jobs hold memory on which GPU, by the ledger: {"n1 gpu0": ["1", "2"]}."""
    found = {
        f"{gpu.node} gpu{gpu.index}": sorted(gpu.holders(), key=int)
        for gpu in ledger.all_gpus(cluster.layout.ledger)
    }
    return {gpu: jobs for gpu, jobs in found.items() if jobs}
