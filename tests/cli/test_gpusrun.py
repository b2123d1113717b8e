"""gpusrun and gpusalloc: the decision of gpusbatch for interactive work."""

from __future__ import annotations

import sys
from typing import Any, List

import pytest

CALL = "import sys; from slurm_gpumem.cli.gpusbatch import main_{0}; sys.exit(main_{0}())"


def call(desk: Any, program: str, *argv: str, **how: Any) -> Any:
    return desk.call("-c", CALL.format(program), *argv, command=sys.executable, **how)


def test_srun_runs_the_command_with_a_share_of_a_gpu(desk: Any) -> None:
    done = call(
        desk, "srun", "--gpu-mem", "12G", "sh", "-c", "echo $SLURM_SHARDS_ON_NODE of $CUDA_VISIBLE_DEVICES"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "0"
    assert "asking for 12 GiB (12 of 40 shards on an a100)" in done.stderr


def test_salloc_gives_a_shell_with_a_share_of_a_gpu(desk: Any) -> None:
    done = call(
        desk,
        "salloc",
        "--gres=gpu:1",
        "--gpu-mem",
        "6G",
        "srun",
        "sh",
        "-c",
        "echo gpu $CUDA_VISIBLE_DEVICES",
    )
    assert done.returncode == 0, done.stderr
    assert "gpu 0" in done.stdout
    assert "asking for 6 GiB" in done.stderr


@pytest.mark.parametrize("program", ["srun", "salloc"])
def test_what_stands_behind_the_command_is_the_commands(desk: Any, program: str) -> None:
    words: List[str] = ["python", "--gpu-mem", "--batch-size", "8", "-n", "4"]
    done = call(desk, program, "--gpu-mem", "12G", "-n", "1", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{program} -n 1 --gres=shard:12 ")
    assert done.stdout.endswith("python --gpu-mem --batch-size 8 -n 4\n")
    assert "open-mode" not in done.stdout
    assert "oom=fail" in done.stdout


def test_without_our_words_the_call_is_the_users_own(desk: Any) -> None:
    done = call(desk, "srun", "--dry-run", "-n", "2", "hostname", "-s")
    assert (done.returncode, done.stdout, done.stderr) == (0, "srun -n 2 hostname -s\n", "")


def test_a_command_for_one_gpu_is_measured_like_a_script(desk: Any) -> None:
    one = call(desk, "srun", "--dry-run", "--gres=gpu:1", "python", "train.py", "--seed", "1")
    two = call(desk, "srun", "--dry-run", "--gres=gpu:1", "python", "train.py", "--seed", "2")
    assert "python: its GPU memory is not known" in one.stderr
    assert one.stdout.partition("fp=")[2][:16] == two.stdout.partition("fp=")[2][:16] != ""


def test_a_step_of_a_job_gets_what_the_job_has(desk: Any) -> None:
    done = call(desk, "srun", "--gpu-mem", "12G", "true", env={"SLURM_JOB_ID": "999999"})
    assert "inside job 999999 srun starts a step" in done.stderr


def test_options_of_srun_are_known(desk: Any) -> None:
    shown = desk.cluster.run(["srun", "--help"], check=True).stdout
    from slurm_gpumem.slurm.submit.sbatch_options import options_from_help, salloc_table, srun_table

    for table, text in (
        (srun_table(), shown),
        (salloc_table(), desk.cluster.run(["salloc", "--help"]).stdout),
    ):
        unknown = [spec.name for spec in options_from_help(text) if table.long(spec.name) is None]
        assert unknown == []


def test_the_help_names_the_program(bare_desk: Any) -> None:
    assert "usage: gpusalloc" in call(bare_desk, "salloc", "--help").stdout
