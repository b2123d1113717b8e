"""One MPS server for all users: who may come, what they can do there, and what older drivers get instead."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, Optional, Tuple

import pytest

from slurm_gpumem.formats.comment import CommentRecord, parse_record
from slurm_gpumem.formats.job_record import Measurement
from slurm_gpumem.formats.live import Live, LiveJob, write_live
from slurm_gpumem.formats.notes import read_fault_note
from slurm_gpumem.formats.task_file import TaskFile, TaskGpu, write_task_file
from slurm_gpumem.node import jobs
from slurm_gpumem.node.jobs import SHARED_UID, NodeJob
from slurm_gpumem.node.mps.mps_blocklist import HOLDS_S, note_fault, why_kept_apart
from slurm_gpumem.node.mps.mps_limits import settle_limit
from slurm_gpumem.node.status import read_status, render
from slurm_gpumem.recovery.task_epilog import jobs_hit_too
from tests.node.conftest import OTHER_USER, USER, Node, kill, left_of_daemons, needs_root, samplers_of
from tests.node.desk import GPUS, Desk
from tests.support.waiting import until

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
        timeout=120,
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
    words = "MPS: shared by all users (1 processes)"
    until(lambda: words in "\n".join(render(read_status(shared.folder, shared.config))))


def test_only_users_with_a_job_there_come_to_the_daemon_and_only_while_they_have_one(shared: Node) -> None:
    for job, uid in ((7, USER), (8, OTHER_USER)):
        shared.hook("prolog", shared.env(job, uid=uid))
    assert [can_connect(shared, uid) for uid in (USER, OTHER_USER, THIRD_USER)] == [True, True, False]
    shared.hook("epilog", shared.env(8, uid=OTHER_USER))
    assert [can_connect(shared, uid) for uid in (USER, OTHER_USER)] == [True, False]
    shared.hook("epilog", shared.env(7))
    assert shared.mps.daemons() == []
    assert left_of_daemons(shared.folder) == []


def test_a_user_of_the_shared_daemon_does_not_command_it(shared: Node) -> None:
    shared.hook("prolog", shared.env(7))
    before = shared.mps.daemons()
    orders = ("set_default_device_pinned_mem_limit 0 1M", "terminate_client 1 2", "shutdown_server 1 -f")
    for command in (*orders, "quit -f"):
        assert "Insufficient privileges" in control(shared, USER, command)
    assert shared.mps.daemons() == before
    assert shared.mps.ask(shared.gpus[0].uuid, SHARED_UID, "get_default_device_pinned_mem_limit 0") == "8192M"


def test_what_a_comment_claims_does_not_raise_the_limit_of_all_for_long(shared: Node) -> None:
    def default() -> Optional[str]:
        return shared.mps.ask(shared.gpus[0].uuid, SHARED_UID, "get_default_device_pinned_mem_limit 0")

    shared.hook("prolog", shared.env(7, comment="gpumem/1:est=1,req=40960"))
    assert default() == "40960M"
    # There is no Slurm to ask here: the test says what it would answer.
    for pid in samplers_of(shared.folder.root):
        kill(pid)
    given = Measurement(shards=4, shards_verified=True, limit_mib=4096)
    write_live(shared.folder.live, Live(jobs={7: LiveJob(measured=given)}))
    job = jobs.get(shared.folder, 7)
    assert job is not None
    settle_limit(shared.folder, shared.config, job)
    assert default() == "4096M"
    # Nor does the next job's prolog believe it again; that job's own claim counts until Slurm has been asked.
    shared.hook("prolog", shared.env(8, uid=OTHER_USER, comment="gpumem/1:est=1,req=8192"))
    assert default() == "8192M"


def test_the_sampler_settles_the_limit_when_slurm_has_said_what_a_job_was_given(
    shared: Node, make_desk: Callable[..., Desk]
) -> None:
    asked = shared.root / "asked"
    control = shared.root / "bin" / "recorder"
    control.write_text(f"#!/bin/sh\ncat >>{asked}\n")
    control.chmod(0o755)
    (shared.root / "bin").rename(shared.root / "tools")
    desk = make_desk(
        squeue=f"echo 1 {USER} RUNNING 0 0 1 gres:shard:4", mps_control=f"{shared.root}/tools/recorder"
    )
    desk.job(1, mode="mps-shared", uid=USER, claim=CommentRecord(shards=40, request_mib=40960))
    desk.folder.pipe(GPUS[0].uuid, SHARED_UID).mkdir(parents=True)
    until(lambda: desk.live() and asked.exists() and "0 4096M" in asked.read_text())


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
    # Its lock is root's too: nobody keeps the next daemon from starting, or says which process is the daemon.
    kept = [home / "pipe" / name for name in ("control_lock", "nvidia-cuda-mps-control.pid")]
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600, 0o644]
    assert shared.mps.ask(shared.gpus[0].uuid, SHARED_UID, "get_server_list") is not None


def test_a_driver_without_the_option_gives_jobs_time_slices_and_says_so(shared: Node) -> None:
    program = Path(shared.config.mps_control)
    program.write_text(program.read_text().replace("-M,--multiuser-server", ""))
    shared.hook("prolog", shared.env(7))
    assert shared.mps.daemons() == []
    assert jobs.get(shared.folder, 7).mode == "timeslice"  # type: ignore[union-attr]
    assert "has no -multiuser-server: time slices, without MPS" in shared.log()


def test_a_partition_may_share_a_server_where_others_do_not(node: Node) -> None:
    path = node.root / "gpumem.toml"
    path.write_text(path.read_text().replace("[node]", '[node]\nmps_by_partition = {course = "shared"}'))
    node.hook("prolog", node.env(7, SLURM_JOB_PARTITION="gpu"))
    node.hook("prolog", node.env(8, SLURM_JOB_PARTITION="course"))
    assert sorted(daemon.uid for daemon in node.mps.daemons()) == [SHARED_UID, USER]


def hit(desk: Desk, *jobs: Tuple[int, int]) -> None:
    """A fault of the driver while jobs of these (number, user) lose their processes at the shared server."""
    home = desk.folder.fault_note(GPUS[0].uuid, SHARED_UID).parent
    home.mkdir(parents=True, exist_ok=True)
    for number, uid in jobs:
        desk.job(number, mode="mps-shared", uid=uid)
    desk.hold({desk.process(number, uid): 10.0 for number, uid in jobs}, mps=True)
    desk.live()
    desk.hold({})
    desk.source.pending = [(GPUS[0].uuid, 31)]
    desk.live()


def kept_apart(desk: Desk, number: int, uid: int, comment: str = "") -> str:
    """How the prolog would let another job of that user run, on a node where users share a server."""
    claim = parse_record(comment) if comment else None
    job = NodeJob(number, uid, "", (GPUS[0].uuid,), "mps-shared", time.time(), claim=claim)
    return why_kept_apart(desk.folder, job)


def test_a_fault_at_the_shared_server_is_roots_finding_about_all_jobs_it_hit(desk: Desk) -> None:
    hit(desk, (1, USER), (2, OTHER_USER))
    for number, other in ((1, 2), (2, 1)):
        (event,) = desk.live()[str(number)]["events"]  # type: ignore[misc]
        assert (event["kind"], event["with"]) == ("xid", [other])
    note = read_fault_note(desk.folder.fault_note(GPUS[0].uuid, SHARED_UID), time.time())
    assert note is not None
    assert note.jobs == (1, 2)


def test_a_neighbour_at_the_shared_server_learns_of_it_from_roots_note_alone(desk: Desk) -> None:
    hit(desk, (1, USER), (2, OTHER_USER))
    pipe = str(desk.folder.pipe(GPUS[0].uuid, SHARED_UID))
    gpus = (TaskGpu(0, GPUS[0].uuid, pipe, 0),)
    task = TaskFile("mps-shared", 1024, 0, None, True, gpus)
    write_task_file(desk.folder.task_file(1), task, USER)
    assert jobs_hit_too(desk.folder, desk.config, 1, USER, wait_s=1.0) == [2]


def test_a_job_that_is_run_again_after_such_a_fault_gets_time_slices_and_no_daemon(shared: Node) -> None:
    comment = "gpumem/1:est=7000,req=8192,again=1,why=neighbour"
    shared.hook("prolog", shared.env(7, comment=comment))
    assert shared.mps.daemons() == []
    assert not [key for key in exports(shared, 7, USER) if "MPS" in key]
    assert jobs.get(shared.folder, 7).mode == "timeslice"  # type: ignore[union-attr]
    assert "a fault ended its last run at the shared MPS server: time slices, without MPS" in shared.log()


def test_a_user_with_a_second_fault_within_a_day_is_kept_off_the_shared_server(desk: Desk) -> None:
    hit(desk, (1, USER), (2, OTHER_USER))
    assert kept_apart(desk, 9, USER) == ""
    for uid in (USER, OTHER_USER):
        note_fault(desk.folder, uid, time.time() - HOLDS_S - 60, alone=False)
    assert kept_apart(desk, 9, USER) == ""
    note_fault(desk.folder, USER, time.time() - 3600, alone=False)
    assert "faults at the shared MPS server" in kept_apart(desk, 9, USER)
    assert kept_apart(desk, 9, OTHER_USER) == ""


def test_a_user_whose_job_faulted_alone_there_is_kept_off_at_once(desk: Desk) -> None:
    hit(desk, (1, USER))
    assert "faults at the shared MPS server" in kept_apart(desk, 9, USER)


def test_a_user_cannot_reach_the_notes_on_suspects(desk: Desk) -> None:
    hit(desk, (1, USER))
    done = subprocess.run(
        ["cat", str(desk.folder.suspects / f"{USER}.json")], user=USER, group=USER, capture_output=True
    )
    assert done.returncode != 0
