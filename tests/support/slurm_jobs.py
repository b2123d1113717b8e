"""Jobs in a dev cluster: how tests submit them and see where they are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Dict, Optional

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


def hold_until(go: Path, peak_mib: object, *options: str) -> str:
    """Commands that hold GPU memory until the file is there, and end well.

    On a slow machine a job of some seconds is over before the sampler, or the job beside it, has started.
    """
    return (
        f"gpumem-standin --peak {peak_mib} --steps 2000 --seconds 600 {' '.join(options)} & "
        f"until [ -e {go} ]; do sleep 0.1; done; kill $!; wait $! || true"
    )


def live_jobs(live: Path) -> Dict[str, Dict[str, Any]]:
    """What a node's sampler last wrote of its jobs; nothing before it has looked."""
    try:
        found: Dict[str, Dict[str, Any]] = json.loads(live.read_text())["jobs"]
    except (OSError, ValueError):
        return {}
    return found


def live_peaks(live: Path) -> Dict[str, Optional[float]]:
    """The memory of each job so far."""
    return {job: seen.get("peak_mib") for job, seen in live_jobs(live).items()}


def verified_peaks(live: Path) -> Dict[str, Optional[float]]:
    """Only of jobs of which Slurm has said what they were given: one that answers slowly is asked seldom."""
    return {job: seen.get("peak_mib") for job, seen in live_jobs(live).items() if seen.get("shards_verified")}


def jobs_on_gpus(cluster: Cluster) -> Dict[str, list[str]]:
    """Which jobs hold memory on which GPU, by the ledger: {"n1 gpu0": ["1", "2"]}."""
    found = {
        f"{gpu.node} gpu{gpu.index}": sorted(gpu.holders(), key=int)
        for gpu in ledger.all_gpus(cluster.layout.ledger)
    }
    return {gpu: jobs for gpu, jobs in found.items() if jobs}


def set_mode(cluster: Cluster, mode: str) -> None:
    """Write the one mode of a cluster's gpumem.toml and have slurmctld load its plug-in again."""
    site = cluster.layout.site_config
    site.write_text(re.sub(r'^mode = ".*"', f'mode = "{mode}"', site.read_text(), flags=re.MULTILINE))
    script = cluster.layout.conf / "job_submit.lua"
    later = script.stat().st_mtime + 10
    os.utime(script, (later, later))
