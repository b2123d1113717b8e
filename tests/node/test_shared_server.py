"""One MPS server for all users: who may come, what they can do there, and what older drivers get instead."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Dict

import pytest

from slurm_gpumem.node import jobs
from slurm_gpumem.node.jobs import SHARED_UID
from tests.node.conftest import OTHER_USER, USER, Node, needs_root

pytestmark = needs_root
THIRD_USER = 2
"""bin: has no job here."""


@pytest.fixture
def shared(node: Node) -> Node:
    return node.with_config(mps="shared")


def exports(node: Node, job: int, uid: int) -> Dict[str, str]:
    env = {**node.env(job, uid=uid), "PATH": os.environ["PATH"], "SLURM_SHARDS_ON_NODE": "12"}
    done = node.hook("task_prolog", env, user=uid, group=uid)
    return dict(line[7:].split("=", 1) for line in done.stdout.splitlines() if line.startswith("export "))


def control(node: Node, uid: int, *commands: str) -> str:
    """What the daemon answers to a user at the pipe that a job is pointed at."""
    done = subprocess.run(
        [node.config.mps_control],
        input="".join(f"{command}\n" for command in commands),
        env={"CUDA_MPS_PIPE_DIRECTORY": str(node.folder.pipe(node.gpus[0].uuid, SHARED_UID))},
        capture_output=True,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
        timeout=10,
    )
    return done.stdout + done.stderr


def can_connect(node: Node, uid: int) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(str(node.folder.pipe(node.gpus[0].uuid, SHARED_UID) / "control"))
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_jobs_of_two_users_are_pointed_at_roots_one_daemon_with_their_own_limits(shared: Node) -> None:
    for job, uid in ((7, USER), (8, OTHER_USER)):
        shared.hook("prolog", shared.env(job, uid=uid))
    (daemon,) = shared.mps.daemons()
    assert (daemon.uid, daemon.uuid) == (SHARED_UID, shared.gpus[0].uuid)
    assert b"-multiuser-server" in Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
    pipe = str(shared.folder.pipe(shared.gpus[0].uuid, SHARED_UID))
    for job, uid in ((7, USER), (8, OTHER_USER)):
        given = exports(shared, job, uid)
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == pipe
        assert given["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].endswith("=12288M")
        assert jobs.get(shared.folder, job).mode == "mps-shared"  # type: ignore[union-attr]


def test_the_last_job_of_all_users_stops_it(shared: Node) -> None:
    for job, uid in ((7, USER), (8, OTHER_USER)):
        shared.hook("prolog", shared.env(job, uid=uid))
    shared.hook("epilog", shared.env(7))
    assert len(shared.mps.daemons()) == 1
    shared.hook("epilog", shared.env(8, uid=OTHER_USER))
    assert shared.mps.daemons() == []
    assert list(shared.folder.mps.iterdir()) == []


def test_only_users_with_a_job_there_come_to_the_daemon_and_only_while_they_have_one(shared: Node) -> None:
    for job, uid in ((7, USER), (8, OTHER_USER)):
        shared.hook("prolog", shared.env(job, uid=uid))
    assert [can_connect(shared, uid) for uid in (USER, OTHER_USER, THIRD_USER)] == [True, True, False]
    shared.hook("epilog", shared.env(8, uid=OTHER_USER))
    assert [can_connect(shared, uid) for uid in (USER, OTHER_USER)] == [True, False]


@pytest.mark.parametrize(
    "command",
    ["quit -f", "set_default_device_pinned_mem_limit 0 1M", "terminate_client 1 2", "shutdown_server 1 -f"],
)
def test_a_user_of_the_shared_daemon_does_not_command_it(shared: Node, command: str) -> None:
    shared.hook("prolog", shared.env(7))
    before = shared.mps.daemons()
    assert "Insufficient privileges" in control(shared, USER, command)
    assert shared.mps.daemons() == before
    assert shared.mps.ask(shared.gpus[0].uuid, SHARED_UID, "get_default_device_pinned_mem_limit 0") == "8192M"


def test_a_user_can_neither_remove_fill_list_nor_read_what_the_shared_daemon_has(shared: Node) -> None:
    shared.hook("prolog", shared.env(7))
    home = shared.folder.pipe(shared.gpus[0].uuid, SHARED_UID).parent
    script = (
        f"rm -f {home}/pipe/control; echo x >{home}/pipe/new; ls {home}/pipe; cat {home}/log/control.log; "
        f"echo 1 >{home}/pipe/nvidia-cuda-mps-control.pid; echo x >{home}/new; mv {home}/pipe {home}/p"
    )
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, user=USER, group=USER, extra_groups=[]
    )
    assert done.stdout == ""
    assert done.stderr.count("denied") == 7
    # Its lock is root's too: nobody keeps the next daemon from starting.
    locked = subprocess.run(
        ["flock", "-n", f"{home}/pipe/control_lock", "true"], capture_output=True, user=USER, group=USER
    )
    assert locked.returncode != 0
    assert shared.mps.ask(shared.gpus[0].uuid, SHARED_UID, "get_server_list") == ""


def test_a_driver_without_the_option_gives_each_user_a_server_and_says_so(shared: Node) -> None:
    program = Path(shared.config.mps_control)
    program.write_text(program.read_text().replace("-M,--multiuser-server", ""))
    shared.hook("prolog", shared.env(7))
    assert [daemon.uid for daemon in shared.mps.daemons()] == [USER]
    job = jobs.get(shared.folder, 7)
    assert job is not None
    assert job.mode == "mps"
    assert "has no -multiuser-server: its own user's MPS server instead of a shared one" in shared.log()


def test_a_partition_may_share_a_server_where_others_do_not(node: Node) -> None:
    (node.root / "gpumem.toml").write_text(
        (node.root / "gpumem.toml").read_text() + 'mps_by_partition = {course = "shared"}\n'
    )
    node.hook("prolog", node.env(7, SLURM_JOB_PARTITION="gpu"))
    node.hook("prolog", node.env(8, SLURM_JOB_PARTITION="course"))
    assert sorted(daemon.uid for daemon in node.mps.daemons()) == [SHARED_UID, USER]
