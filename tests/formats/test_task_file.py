from __future__ import annotations

from pathlib import Path

from slurm_gpumem.formats.task_file import (
    TaskFile,
    TaskGpu,
    format_task_file,
    read_task_gpus,
    write_task_file,
)

TASK = TaskFile(
    mode="mps",
    shard_mib=1024,
    headroom_mib=512,
    claim_mib=8704,
    record=True,
    gpus=(TaskGpu(0, "GPU-aa", "/run/gpumem/mps/GPU-aa/1000/pipe", 40_960), TaskGpu(1, "GPU-bb", "/p", 0)),
)


def test_it_is_a_line_of_plain_words_for_each_fact() -> None:
    assert format_task_file(TASK).splitlines() == [
        "mode mps",
        "shard_mib 1024",
        "headroom_mib 512",
        "limits yes",
        "claim_mib 8704",
        "run 0",
        "record yes",
        "gpu 0 GPU-aa /run/gpumem/mps/GPU-aa/1000/pipe 40960",
        "gpu 1 GPU-bb /p 0",
    ]


def test_its_gpus_are_read_back_and_other_lines_passed_over(tmp_path: Path) -> None:
    write_task_file(tmp_path / "7.task", TASK, 65534)
    assert read_task_gpus(tmp_path / "7.task") == TASK.gpus
    (tmp_path / "8.task").write_bytes(b"gpu x GPU-aa /p 1\ngpu 0 GPU-aa\n\xff\ngpu 1 GPU-cc /q 5\n")
    assert read_task_gpus(tmp_path / "8.task") == (TaskGpu(1, "GPU-cc", "/q", 5),)
    assert read_task_gpus(tmp_path / "missing") == ()


def test_that_there_is_one_log_is_said_only_where_it_is_known() -> None:
    assert "one_log yes" in format_task_file(TASK._replace(one_log=True)).splitlines()
    assert "one_log" not in format_task_file(TASK)
