from __future__ import annotations

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.node import processes
from slurm_gpumem.node.mps.daemons import MpsError, MpsService
from tests.node.conftest import MPS_STANDIN, OTHER_USER, USER, Node, left_of_daemons, needs_root
from tests.support.waiting import until

pytestmark = needs_root


def test_a_daemon_runs_as_the_user_pinned_to_one_gpu_by_uuid(node: Node) -> None:
    uuid = node.gpus[3].uuid
    assert node.mps.ensure(uuid, USER, in_use=False)
    (daemon,) = node.mps.daemons()
    assert (daemon.uid, daemon.uuid) == (USER, uuid)
    environment = processes.environment(daemon.process.pid)
    assert environment["CUDA_VISIBLE_DEVICES"] == uuid
    assert set(environment) <= {
        "PATH",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
    }


def test_a_second_job_finds_the_daemon_of_the_first(node: Node) -> None:
    uuid = node.gpus[0].uuid
    node.mps.ensure(uuid, USER, in_use=False)
    assert not node.mps.ensure(uuid, USER, in_use=True)
    assert not node.mps.ensure(uuid, USER, in_use=False)
    assert len(node.mps.daemons()) == 1


def test_two_users_have_a_daemon_each_on_one_gpu(node: Node) -> None:
    uuid = node.gpus[0].uuid
    for uid in (USER, OTHER_USER):
        node.mps.ensure(uuid, uid, in_use=False)
    assert {daemon.uid for daemon in node.mps.daemons()} == {USER, OTHER_USER}
    node.mps.stop(uuid, USER)
    assert {daemon.uid for daemon in node.mps.daemons()} == {OTHER_USER}


def test_after_the_last_stop_no_process_and_no_folder_is_left(node: Node) -> None:
    uuid = node.gpus[0].uuid
    node.mps.ensure(uuid, USER, in_use=False)
    node.mps.stop(uuid, USER)
    assert node.mps.daemons() == []
    assert left_of_daemons(node.folder) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_daemon_that_does_not_answer_is_replaced_for_the_next_job(node: Node, number: int) -> None:
    service = MpsService(node.folder, node.config.mps_control, quit_timeout_s=0.3)
    uuid = node.gpus[0].uuid
    service.ensure(uuid, USER, in_use=False)
    (first,) = service.daemons()
    os.kill(first.process.pid, number)
    assert service.ensure(uuid, USER, in_use=False)
    (second,) = service.daemons()
    assert second.process != first.process
    assert node.mps.ask(uuid, USER, "get_server_list") == str(second.process.pid)


def test_a_slow_daemon_that_serves_another_job_is_left_alone(node: Node) -> None:
    uuid = node.gpus[0].uuid
    node.mps.ensure(uuid, USER, in_use=False)
    (daemon,) = node.mps.daemons()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    assert not node.mps.ensure(uuid, USER, in_use=True)
    os.kill(daemon.process.pid, signal.SIGCONT)
    assert node.mps.daemons() == [daemon]


def test_the_default_limit_reaches_the_daemon(node: Node) -> None:
    uuid = node.gpus[0].uuid
    node.mps.ensure(uuid, USER, in_use=False)
    node.mps.set_default_limit(uuid, USER, 8192)
    assert node.mps.ask(uuid, USER, "get_default_device_pinned_mem_limit 0") == "8192M"


@pytest.mark.parametrize("body", ["exec yes 12345", "exec sleep 30", "exec cat /dev/zero"])
def test_a_daemon_that_talks_nonsense_costs_little_and_is_not_believed(node: Node, body: str) -> None:
    program = node.root / "bin" / "talker"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    service = MpsService(node.folder, str(program), quit_timeout_s=0.5)
    assert service.ask(node.gpus[0].uuid, USER, "get_server_list") is None


def test_what_talks_to_a_users_daemon_as_that_user_goes_ahead_of_nobody(node: Node) -> None:
    Path(node.config.mps_control).write_text("#!/bin/sh\nnice\nid -u\n")

    def ask() -> Optional[str]:
        processes.go_ahead_of_jobs()
        return node.mps.ask(node.gpus[0].uuid, USER, "get_server_list")

    with ThreadPoolExecutor(1) as sampler:
        assert sampler.submit(ask).result() == f"0\n{USER}"


def test_a_program_that_cannot_be_started_is_an_error_and_leaves_nothing(node: Node) -> None:
    broken = node.root / "bin" / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(MpsError, match="ended with 3"):
        MpsService(node.folder, str(broken)).ensure(node.gpus[0].uuid, USER, in_use=False)
    assert left_of_daemons(node.folder) == []


@pytest.mark.parametrize("uuid", ["GPU-../../etc", "GPU-0;quit", "../x", "", "GPU-0\nquit"])
def test_what_is_no_uuid_never_becomes_a_path_or_a_command(node: Node, uuid: str) -> None:
    with pytest.raises(MpsError, match="no GPU UUID"):
        node.mps.ensure(uuid, USER, in_use=False)


def test_links_that_a_user_puts_into_the_pipe_folder_lead_nowhere(node: Node) -> None:
    uuid = node.gpus[0].uuid
    victim = node.root / "precious"
    victim.mkdir()
    (victim / "file").write_text("keep")
    node.mps.ensure(uuid, USER, in_use=False)
    for name, target in (("link", victim), ("control2", victim / "file")):
        (node.folder.pipe(uuid, USER) / name).symlink_to(target)
    node.mps.stop(uuid, USER)
    assert (victim / "file").read_text() == "keep"


@pytest.mark.parametrize(("uid", "place"), [(0, OTHER_USER), (USER, 0)], ids=["roots", "setuid"])
def test_a_process_that_only_borrows_the_name_is_not_taken_for_ours(node: Node, uid: int, place: int) -> None:
    program = node.root / "bin" / "fake" / MPS_STANDIN.name
    program.parent.mkdir()
    shutil.copy("/bin/dash", program)
    program.chmod(0o4755)
    impostor = subprocess.Popen(
        [program, "-p", "-c", "read line", "-d"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(node.folder.pipe(node.gpus[0].uuid, place))},
        stdin=subprocess.PIPE,
        user=uid,
    )
    until(lambda: processes.is_named(impostor.pid, MPS_STANDIN.name) and processes.uid_of(impostor.pid) == 0)
    assert node.mps.daemons() == []
    impostor.communicate()


def test_with_systemd_a_unit_of_its_own_is_asked_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpumem.node.mps.daemons._has_systemd", lambda: True)
    uuid = node.gpus[0].uuid
    command = node.mps._launcher(uuid, USER)
    assert command[0] == "systemd-run"
    assert f"--uid={USER}" in command
    assert f"--setenv=CUDA_VISIBLE_DEVICES={uuid}" in command
    assert command[-2:] == [node.config.mps_control, "-f"]
