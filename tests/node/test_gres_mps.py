"""gres/mps in a real Slurm: what it tells a job's steps, and what it does with a node's second GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.formats.task_file import TaskFile, TaskGpu, write_task_file
from slurm_gpumem.node.gpus import standin_uuid
from slurm_gpumem.node.jobs import RunFolder
from tests.node.conftest import REPOSITORY, USER, needs_root
from tests.support.slurm_jobs import submit

pytestmark = [needs_root, pytest.mark.slurm]
SHOW = (
    """printf '%s %s\\n' "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-unset}" "$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\""""
)


def test_script_and_steps_are_held_to_their_memory_and_not_to_a_part_of_the_sms(
    make_cluster: Any, state_folder: Path
) -> None:
    """Slurm sets the variable for every step again: it stays the sign of an mps job in nested steps."""
    hooks, folder = state_folder / "hooks", RunFolder(state_folder / "run")
    shutil.copytree(REPOSITORY / "prolog", hooks)
    (hooks / "hooks.conf").write_text(f"run_dir={folder.root}\n")
    folder.make()
    (state_folder / "out").mkdir()
    (state_folder / "out").chmod(0o1777)
    show = state_folder / "show"
    show.write_text(f"#!/bin/sh\n{SHOW}\n")
    show.chmod(0o755)
    cluster = make_cluster(
        nodes=default_nodes(1, gpus=2), gres="mps", extra_conf=(f"TaskProlog={hooks}/task_prolog.sh",)
    )
    # Quietly: srun says in the same file where a step has to wait for the one before it.
    steps = f"{show}; srun -Q {show}; srun -Q --export=NONE {show}; srun -Q --gres=mps:15 {show}"
    out = state_folder / "out" / "job"
    job = submit(cluster, "-H", "--gres=mps:30", "--mem=1G", command=steps, output=str(out), user="nobody")
    uuid = standin_uuid("n1", 0)
    task = TaskFile("mps", 1024, 0, 8192, True, ())
    gpu = TaskGpu(0, uuid, str(folder.pipe(uuid, USER)), 40960)
    write_task_file(folder.task_file(int(job)), task._replace(gpus=(gpu,)), USER)
    cluster.run(["scontrol", "release", job], check=True)
    assert wait_for_job(cluster, job)["JobState"] == "COMPLETED"
    assert out.read_text().splitlines() == 4 * [f"unset {uuid}=8192M"]
