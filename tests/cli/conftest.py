"""Calling gpusbatch as users do: the installed command, in a cluster, from a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.demo import show_job

GPUSBATCH = str(Path(sys.executable).with_name("gpusbatch"))
SUMMARY = """\
----------------------------------------------------------------
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 64, 112, 112]           9,408
       BatchNorm2d-2         [-1, 64, 112, 112]             128
              ReLU-3         [-1, 64, 112, 112]               0
         MaxPool2d-4           [-1, 64, 56, 56]               0
            Conv2d-5          [-1, 256, 56, 56]          36,864
 AdaptiveAvgPool2d-6            [-1, 256, 1, 1]               0
            Linear-7                 [-1, 1000]         257,000
================================================================
Total params: 303,400
Trainable params: 303,400
Non-trainable params: 0
----------------------------------------------------------------
"""


class Desk:
    """A user's folder with a summary and a job script, and gpusbatch at hand."""

    def __init__(self, folder: Path, cluster: Optional[Cluster]) -> None:
        self.folder = folder
        self.cluster = cluster
        self.jobs: List[str] = []
        self.script("job.sh", "true")
        (folder / "summary.txt").write_text(SUMMARY)

    def script(self, name: str, body: str, head: str = "") -> Path:
        """Write a job script; `head` are its #SBATCH and #GPUMEM lines."""
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{head}\n{body}\n")
        return path

    def environment(self, env: Optional[Mapping[str, str]]) -> Dict[str, str]:
        own = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / ".cache"), "LC_ALL": "C.UTF-8"}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_", "GPUMEM_"))}
        return {**clean, **(self.cluster.env if self.cluster else {}), **own, **(env or {})}

    def call(
        self,
        *argv: str,
        command: str = GPUSBATCH,
        env: Optional[Mapping[str, str]] = None,
        stdin: Optional[str] = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run gpusbatch (or another command) and return what it said."""
        return subprocess.run(
            [command, *argv],
            cwd=self.folder,
            env=self.environment(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, *argv: str, **how: Any) -> str:
        """Submit with gpusbatch and return the job's id; it is cancelled when the test ends."""
        done = self.call("--parsable", *argv, **how)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        assert job.isdigit(), done.stdout
        self.jobs.append(job)
        return job

    def shown(self, job: str) -> Dict[str, str]:
        assert self.cluster is not None
        return show_job(self.cluster, job)

    def gres(self, job: str) -> str:
        """The job's GPU request, "shard:13" whatever Slurm's version puts before it."""
        words = self.shown(job).get("TresPerNode", "").split(",")
        return ",".join(word.replace("gres/", "").replace("gres:", "") for word in words)

    def comment(self, job: str) -> str:
        assert self.cluster is not None
        return self.cluster.run(["squeue", "-h", "-j", job, "-o", "%k"], check=True).stdout[:-1]

    def tidy(self) -> None:
        if self.cluster is not None and self.jobs:
            self.cluster.run(["scancel", *self.jobs])


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    """A desk at the session's cluster: two nodes with four 40-GiB a100 each."""
    own = Desk(tmp_path, cluster)
    yield own
    own.tidy()


@pytest.fixture
def desk_at(tmp_path: Path) -> Any:
    """A desk at a cluster of the test's own."""
    return lambda cluster: Desk(tmp_path, cluster)


@pytest.fixture
def bare_desk(tmp_path: Path) -> Desk:
    """A desk without any Slurm: for what must be said before Slurm is asked."""
    return Desk(tmp_path, None)
