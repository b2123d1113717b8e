"""What a job's Slurm options say of GPUs, by sbatch's own precedence."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

import pytest

from slurm_gpumem.slurm.submit.gpu_options import GpuWish, Wishes, gpu_wish, merge_wishes
from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript

TABLE = sbatch_table()


def wishes(argv: Sequence[str] = (), env: Optional[Dict[str, str]] = None, script: str = "") -> Wishes:
    inside = BatchScript("job.sh", "job.sh", f"#!/bin/sh\n{script}\n".encode()).options(TABLE)
    return merge_wishes(read_command_line([*argv, "job.sh"], TABLE).options, env or {}, inside)


def wish(*argv: str, body: str = "true") -> GpuWish:
    return gpu_wish(wishes(argv), BatchScript("job.sh", "job.sh", f"#!/bin/sh\n{body}\n".encode()))


def test_the_command_line_wins_over_the_environment_and_that_over_the_script() -> None:
    said = wishes(["-p", "third"], {"SBATCH_PARTITION": "second"}, "#SBATCH -p first")
    assert said.get("partition") == "third"
    assert wishes([], {"SBATCH_PARTITION": "second"}, "#SBATCH -p first").get("partition") == "second"
    assert wishes([], {}, "#SBATCH -p first").get("partition") == "first"


def test_the_last_of_several_counts() -> None:
    assert wishes(["--mem=1G", "--mem=2G"]).get("mem") == "2G"


@pytest.mark.parametrize(
    ("argv", "gpus", "gpu_type"),
    [
        (["--gres=gpu:a100:1"], 1, "a100"),
        (["--gres=gpu:a100"], 1, "a100"),
        (["-G", "a100:1"], 1, "a100"),
        (["--gpus-per-task=1"], 1, None),
        (["--gres=gpu:0"], 0, None),
        ([], 0, None),
    ],
)
def test_a_job_with_at_most_one_gpu_can_share(
    argv: Sequence[str], gpus: int, gpu_type: Optional[str]
) -> None:
    said = wish(*argv)
    assert (said.gpus, said.gpu_type, said.keep_whole) == (gpus, gpu_type, None)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--gres=gpu:2"], "it asks for 2 GPUs (--gres)"),
        (["--gpus=a100:2"], "it asks for 2 GPUs (--gpus)"),
        (["--gpus-per-node=4"], "it asks for 4 GPUs (--gpus-per-node)"),
        (["--gpus-per-task=1", "-n", "4"], "it asks for 4 GPUs (--gpus-per-task)"),
        (["--gres=gpu:a100:1,gpu:h200:1"], "it asks for several kinds of GPUs"),
        (["--exclusive", "--gres=gpu:1"], "--exclusive takes whole nodes"),
        (["--gpu-freq=high", "--gres=gpu:1"], "--gpu-freq is for whole GPUs"),
        (["--gpu-bind=closest", "-G1"], "--gpu-bind is for whole GPUs"),
        (["-N", "2", "--gres=gpu:2"], "it asks for 2 GPUs on each of 2 nodes (--gres)"),
        (
            ["-N", "2", "--gpus=2"],
            "--gpus counts the GPUs of its 2 nodes together (--gres=gpu:1 would share)",
        ),
        (
            ["-N", "2", "-n", "4", "--gres=gpu:1"],
            "it runs 2 tasks on one GPU on each of 2 nodes (--ntasks-per-node=1 would share)",
        ),
        (
            ["-N", "2", "--ntasks-per-node=2", "--gpus-per-task=1"],
            "it asks for 2 GPUs on each of 2 nodes (--gpus-per-task)",
        ),
        (["-n", "4", "--gres=gpu:1"], "its 4 tasks may run on several nodes (-N 1 would share)"),
        (["--tres-per-task=gres/gpu:1"], "--tres-per-task asks for its GPUs"),
    ],
)
def test_a_job_that_needs_more_keeps_whole_gpus_and_says_why(argv: Sequence[str], reason: str) -> None:
    assert wish(*argv).keep_whole == reason


def test_one_node_is_no_obstacle() -> None:
    assert wish("-N", "1", "--gres=gpu:1").keep_whole is None
    assert wish("-N", "1", "-n", "4", "--gres=gpu:1").keep_whole is None


@pytest.mark.parametrize(
    ("argv", "total"),
    [
        (["-N", "2", "--gres=gpu:1"], 2),
        (["--nodes=2-4", "--gpus-per-node=1"], 2),
        (["-N", "2", "-n", "2", "--gres=gpu:a100:1"], 2),
        (["-N", "4", "--ntasks-per-node=1", "--gpus-per-task=1"], 4),
        (["-N", "2"], 0),
    ],
)
def test_one_gpu_on_each_of_several_nodes_may_be_a_part_of_one(argv: Sequence[str], total: int) -> None:
    said = wish(*argv)
    assert (said.keep_whole, said.total) == (None, total)


@pytest.mark.parametrize(
    "step",
    [
        "srun --gres=gpu:1 python t.py",
        "exec srun -n1 --gpus=1 x",
        "srun --gpus-per-task 1 x",
        "  srun -G 1 x",
    ],
)
def test_a_step_that_names_gpus_itself_needs_a_whole_one(step: str) -> None:
    assert wish("--gres=gpu:1", body=step).keep_whole == "an srun in job.sh asks for a GPU itself"


@pytest.mark.parametrize("step", ["srun python t.py", "# srun --gres=gpu:1 x", "srun -n1 -c4 python -u t.py"])
def test_an_ordinary_step_does_not(step: str) -> None:
    assert wish("--gres=gpu:1", body=step).keep_whole is None


def test_other_gres_and_shards_by_hand_are_told_apart() -> None:
    said = wish("--gres=lustre:2,gpu:a100:1,craynetwork:0")
    assert (said.gpu_type, said.other_gres, said.shared_gres) == ("a100", ("lustre:2", "craynetwork:0"), None)
    assert wish("--gres=shard:a100:5").shared_gres == "shard:a100:5"
