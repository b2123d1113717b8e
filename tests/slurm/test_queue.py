"""Jobs as squeue and scontrol tell of them."""

from __future__ import annotations

from typing import Dict, Optional

import pytest

from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import (
    SlurmJob,
    find_job,
    in_grace_time,
    job_name,
    parse_job,
    parse_slurm_job,
    queued,
    slurm_job_command,
    stdout_of,
)
from tests.support.fake_slurm import FakeSlurm
from tests.support.squeue import squeue_cells


@pytest.mark.parametrize(
    ("line", "shards"),
    [
        ("5 1000 RUNNING 2 0 1 gres:shard:12", 12),
        ("5 1000 RUNNING 2 0 1 gres/shard:12", 12),
        ("5 1000 RUNNING 2 0 1 gres:shard:a100:12", 12),
        ("5 1000 RUNNING 2 0 1 gres/shard:3090:12", 12),
        ("5 1000 RUNNING 2 0 1 gres/shard:1g.10gb:4", 4),
        ("5 1000 RUNNING 2 0 1 gres/gpu:a100:1", None),
        ("5 1000 RUNNING 2 0 1 gres:mps:30", 30),
        ("5 1000 RUNNING 2 0 1 gres:gpu:1,gres:shard:3", 3),
        ("5 1000 RUNNING 2 0 1 N/A", None),
        ("5 1000 RUNNING 2 0 1", None),
        ("5 1000 RUNNING 2 0 1 gres:shard:12 5", 12),
        ("5 1000 RUNNING 2 0 1 N/A 5+0", None),
    ],
)
def test_slurms_count_of_shards_is_read_in_every_versions_spelling(line: str, shards: object) -> None:
    expected = SlurmJob(5, 1000, shards, "RUNNING", 2)  # type: ignore[arg-type]
    assert parse_slurm_job(f"4 1 PENDING 0 0 1\n{line}\n", 5) == expected


def test_a_task_is_known_by_its_array_also_when_the_answer_has_all_of_the_array() -> None:
    text = "7 1000 RUNNING 0 0 1 gres:shard:2 5_1\n5 1000 RUNNING 0 0 1 gres:shard:2 5_12\n"
    assert parse_slurm_job(text, 5) == SlurmJob(5, 1000, 2, "RUNNING", 0, 5, 12)
    assert parse_slurm_job(text, 7) == SlurmJob(7, 1000, 2, "RUNNING", 0, 5, 1)


def test_a_comment_stands_behind_the_bar_and_answers_nothing() -> None:
    text = "5 1000 RUNNING 0 0 1 gres/gpu:1 5 |mine 6_7 gres:shard:9 gpumem/1:shards=0  \n"
    comment = "mine 6_7 gres:shard:9 gpumem/1:shards=0"
    assert parse_slurm_job(text, 5) == SlurmJob(5, 1000, None, "RUNNING", comment=comment)
    assert "Comment" not in slurm_job_command(5)[-1]
    assert slurm_job_command(5, comment=True)[-1] == slurm_job_command(5)[-1] + ",Comment:4096"


@pytest.mark.parametrize(
    ("state", "here", "over"),
    [
        ("RUNNING", True, False),
        ("COMPLETING", True, False),
        ("CONFIGURING", True, False),
        ("SUSPENDED", True, False),
        ("PENDING", False, False),
        ("REQUEUE_HOLD", False, False),
        ("CANCELLED", False, True),
        ("OUT_OF_MEMORY", False, True),
    ],
)
def test_a_jobs_state_says_whether_it_is_here_or_over(state: str, here: bool, over: bool) -> None:
    job = parse_slurm_job(f"5 1000 {state} 0 0 1 gres:shard:1\n", 5)
    assert job is not None
    assert (job.is_here, job.is_over) == (here, over)


def test_other_lines_of_squeue_are_passed_over() -> None:
    assert parse_slurm_job("slurm_load_jobs error: x\n\n5_2 1000 N/A\n55 1000 RUNNING 0 0 1\n", 5) is None


CELLS = ("7_3", "FAILED", "NonZeroExitCode", "0", "1", "1", "256", "N/A", "9", "5", "9",
         "anna", "phys", "normal", "2", "2:00:00", "10:05", "3",
         "gpu,other", "gres:shard:12", "x State=RUNNING|7|gpu:8")  # fmt: skip


def test_a_comment_cannot_pose_as_another_column() -> None:
    job = parse_job(squeue_cells(*CELLS))
    assert job is not None
    assert (job.name, job.state, job.status, job.partitions) == ("7_3", "FAILED", "1:0", ("gpu", "other"))
    assert job.comment == "x State=RUNNING|7|gpu:8"
    assert (job.number, job.user, job.account, job.qos, job.nodes) == (9, "anna", "phys", "normal", 2)
    assert (job.limit_min, job.used_s, job.nice) == (120, 605, 3)
    assert parse_job("") is None


def test_one_task_of_an_array_is_found_among_its_others() -> None:
    lines = "\n".join(squeue_cells(name, *CELLS[1:]) for name in ("7_1", "7_3", "7_[4-9]"))
    job = find_job(FakeSlurm({"squeue -j 7_3 -t all": f"{lines}\n"}), "7_3")
    assert job is not None
    assert job.name == "7_3"
    assert find_job(FakeSlurm({"squeue -j 8 -t all": ""}), "8") is None


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
        ({"SLURM_JOB_ID": "7; rm"}, None),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, None),
        ({}, None),
    ],
)
def test_a_hooks_environment_names_its_job(env: Dict[str, str], name: Optional[str]) -> None:
    assert job_name(env) == name


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "JobId=7 JobName=x\n   StdIn=/dev/null\n   StdOut=/home/anna/my out.txt\n   Power=\n",
            "/home/anna/my out.txt",
        ),
        ("JobId=7\n   Comment=x\n   StdOut=/etc/passwd\n   StdOut=/home/anna/out\n", "/home/anna/out"),
        ("JobId=7\n   StdOut=relative\n", None),
        ("", None),
    ],
)
def test_a_jobs_output_is_where_slurm_says(text: str, path: Optional[str]) -> None:
    assert stdout_of(FakeSlurm({"scontrol show job 7": text}), "7") == path


@pytest.mark.parametrize(
    ("state", "preempted", "found"),
    [("RUNNING", "2026-11-18T02:40:12", True), ("RUNNING", "None", False), ("COMPLETING", "None", False)],
)
def test_a_job_in_its_grace_time_runs_and_has_a_time_of_preemption(
    state: str, preempted: str, found: bool
) -> None:
    times = f"PreemptEligibleTime=2026-11-18T02:39:00 PreemptTime={preempted}"
    text = f"JobId=7\n   JobState={state} Reason=None\n   {times}\n"
    assert in_grace_time(FakeSlurm({"scontrol show job 7": text}), "7") == found


def test_the_queue_tells_what_every_job_asks_for() -> None:
    asked = ("gres:gpu:1", "gres:shard:3090:3")
    lines = "".join(f"{'gpu':<64}{gres:<128}{'N/A':<64}\n" for gres in asked)
    found = queued(FakeSlurm({"squeue": lines}))
    assert [(job.partition, job.tres.split()[0]) for job in found] == [("gpu", gres) for gres in asked]


def test_what_a_recovery_left_half_done_is_found_by_reason_and_by_mark() -> None:
    slurm = FakeSlurm(
        {
            "squeue -t PENDING -o %i|%r": "7|job requeued in held state\n8|JobHeldUser\n9_[1-4]|Priority\n",
            "squeue -t FAILED -o %i|%k": "5|gpumem/1:est=1 gpumem-end/1:run=0\n6|gpumem-end/1:\nx\n",
        }
    )
    assert Controller(slurm).left_over("gpumem-end/1:") == ["7", "5"]


def test_a_change_names_the_job_and_all_fields_at_once() -> None:
    slurm = FakeSlurm({"scontrol update": ""})
    Controller(slurm).update("7_3", Gres="gpu:1", Comment="a b")
    assert slurm.asked == [["scontrol", "update", "JobId=7_3", "Gres=gpu:1", "Comment=a b"]]
