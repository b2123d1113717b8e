from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.node.processes import uid_of
from slurm_gpumem.node.sampler.pid_to_job import Owners, job_in_cgroup, step_daemons
from tests.node.conftest import USER, needs_root
from tests.support.waiting import until

V1 = "9:name=systemd:/\n4:memory:/slurm/uid_1000/job_42/step_batch/task_0\n1:cpu:/\n"
V1_NAMED = "4:memory:/slurm_n1/uid_1000/job_42/step_0/task_3\n"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0\n"
V2_NAMED = "0::/system.slice/n1_slurmstepd.scope/job_42/step_extern/user\n"
SLUID = "0::/system.slice/slurmstepd.scope/sA1B2C3D4E5F6G/step_batch/user/task_0\n"
SLUID_PREFIXED = "0::/system.slice/slurmstepd.scope/job_sA1B2C3D4E5F6G/step_batch/user/task_0\n"


@pytest.mark.parametrize("text", [V1, V1_NAMED, V2, V2_NAMED, SLUID, SLUID_PREFIXED])
def test_the_job_stands_in_the_cgroups_path(text: str) -> None:
    assert job_in_cgroup(text, {"sA1B2C3D4E5F6G": 42}) == 42


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/user.slice/user-1000.slice/job_42\n",
        "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_42/step_0\n",
        "0::/user@1000.service/slurm/uid_7/job_42/step_0\n",
        "0::/init.scope",
        "0::/system.slice/slurmd.service\n",
        SLUID,
        "nonsense",
    ],
)
def test_other_cgroups_are_no_jobs(text: str) -> None:
    assert job_in_cgroup(text, {}) is None


def test_a_cgroup_that_a_job_makes_below_its_own_changes_nothing() -> None:
    assert job_in_cgroup("0::/system.slice/slurmstepd.scope/job_42/step_0/user/job_7\n", {}) == 42
    assert job_in_cgroup("0::/system.slice/slurmstepd.scope/sAAAA/step_0/user/job_7\n", {"sAAAA": 42}) == 42


@given(st.text(max_size=300))
def test_no_cgroup_text_breaks_the_reader(text: str) -> None:
    job_in_cgroup(text, {"x": 1})


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """(a slurmstepd's child, its child), the stepd being a bash that is called so."""
    stepd = subprocess.Popen(
        ["bash", "-c", "exec -a 'slurmstepd: [77.batch]' bash -c 'bash -c \"sleep 60; :\"; :'"],
        start_new_session=True,
    )
    child = until(lambda: _child(stepd.pid))
    yield child, until(lambda: _child(child))
    os.killpg(stepd.pid, 9)
    stepd.wait()


def _child(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(text[0]) if text else 0


def test_without_cgroups_the_ancestors_tell(family: tuple[int, int]) -> None:
    assert Owners().job_of(family[0], {}, {}) == 77
    assert Owners().job_of(family[1], {}, {}) == 77


def test_a_root_process_by_that_name_gives_nobody_anothers_job(family: tuple[int, int]) -> None:
    assert Owners().job_of(family[0], {}, {77: os.getuid() + 1}) is None
    assert Owners().job_of(family[0], {}, {77: os.getuid()}) == 77


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o4755], ids=["ordinary", "setuid"])
def test_a_users_process_that_calls_itself_slurmstepd_is_not_believed(state_folder: Path, mode: int) -> None:
    program = state_folder / "slurmstepd"
    shutil.copy("/bin/dash", program)
    program.chmod(mode)
    liar = subprocess.Popen(
        ["slurmstepd: [7177.batch]", "-p", "-c", "sleep 60; :"],
        executable=program,
        start_new_session=True,
        user=USER,
        group=USER,
    )
    child = until(lambda: _child(liar.pid))
    assert uid_of(liar.pid) == (0 if mode & 0o4000 else USER)
    assert (Owners().job_of(child, {}, {}), step_daemons({7177})) == (None, {})
    os.killpg(liar.pid, 9)
    liar.wait()


@pytest.mark.parametrize(
    ("uids", "job"), [({88: os.getuid()}, 88), ({88: os.getuid() + 1}, None), ({}, None)]
)
def test_what_a_process_says_is_believed_of_its_own_users_jobs_only(
    uids: dict[int, int], job: object
) -> None:
    process = subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "88"})
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    assert Owners().job_of(process.pid, {}, uids) == job
    process.kill()
    process.wait()


def test_a_process_that_is_gone_is_nobodys() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Owners().job_of(process.pid, {}, {}) is None
