"""One user does their worst with what is theirs; another user's jobs are limited anyway, and in time."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Iterator, List

import pytest

from slurm_gpumem.formats.job_record import WITHOUT_MPS
from slurm_gpumem.node import jobs, processes, records
from slurm_gpumem.node.log import ProblemLog
from slurm_gpumem.node.mps import daemons, mps_limits
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.mps.stale_daemons import Orphans
from slurm_gpumem.units import MIB
from tests.node.conftest import MPS_STANDIN, OTHER_USER, USER, Node, left_of_daemons, needs_root
from tests.support.timing import slowness
from tests.support.waiting import until

pytestmark = needs_root
ATTACKER, VICTIM = USER, OTHER_USER
LATE_S = 3.0
"""A victim's Prolog takes less than this, times the machine's slowness, whatever another user does."""
LOOKALIKES = 1500


def start(node: Node, name: str, job_id: int, uid: int, gpu: str = "0") -> subprocess.Popen[bytes]:
    env = node.env(job_id, uid=uid, gpu=gpu)
    return subprocess.Popen([str(node.hooks / f"{name}.sh")], env=env)


def limited(node: Node, job_id: int) -> bool:
    job = jobs.get(node.folder, job_id)
    return job is not None and job.mode == "mps" and node.folder.task_file(job_id).exists()


def seconds_of_prolog(node: Node, job_id: int, uid: int, gpu: str = "0") -> float:
    began = time.monotonic()
    assert node.hook("prolog", node.env(job_id, uid=uid, gpu=gpu)).returncode == 0
    return time.monotonic() - began


@pytest.mark.timing
def test_a_daemon_that_its_owner_stopped_delays_nobody_elses_jobs(node: Node) -> None:
    node.hook("prolog", node.env(1, uid=ATTACKER))
    (daemon,) = node.mps.daemons()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    attack = [start(node, "prolog", job_id, ATTACKER) for job_id in range(2, 32)]
    # All of them are at the daemon now, or wait for each other.
    until(lambda: len(jobs.all_jobs(node.folder)) == 31)
    taken = [seconds_of_prolog(node, job_id, VICTIM) for job_id in range(101, 105)]
    assert max(taken) < LATE_S * slowness(), taken
    assert all(limited(node, job_id) for job_id in range(101, 105))
    for hook in attack:
        assert hook.wait(timeout=240) == 0
    # The attacker's own jobs are limited or say that they are not; none is in between.
    for job in jobs.all_jobs(node.folder):
        assert job.mode == "mps" or (job.mode == WITHOUT_MPS and "not limited" in job.notes[0]), job


@pytest.mark.timing
def test_epilogs_at_a_stopped_daemon_delay_nobody_elses_jobs(node: Node) -> None:
    for job_id in range(1, 9):
        node.hook("prolog", node.env(job_id, uid=ATTACKER))
    (daemon,) = node.mps.daemons()
    os.kill(daemon.process.pid, signal.SIGSTOP)
    failed = {"SLURM_JOB_EXIT_CODE2": "1:0"}
    attack = [
        subprocess.Popen([str(node.hooks / "epilog.sh")], env={**node.env(job_id, uid=ATTACKER), **failed})
        for job_id in range(1, 9)
    ]
    taken = [seconds_of_prolog(node, job_id, VICTIM) for job_id in range(101, 105)]
    assert max(taken) < LATE_S * slowness(), taken
    assert all(limited(node, job_id) for job_id in range(101, 105))
    for hook in attack:
        assert hook.wait(timeout=240) == 0


@pytest.fixture
def lookalikes(node: Node) -> Iterator[List[int]]:
    """Processes with the daemon's name and arguments and a megabyte of environment each, the attacker's."""
    program = node.root / "bin" / "fake" / MPS_STANDIN.name
    program.parent.mkdir()
    program.write_text(
        textwrap.dedent(
            f"""\
            #!/usr/bin/python3 -I
            import os, time
            for _ in range({LOOKALIKES} - 1):
                if not os.fork():
                    break
            time.sleep(300)
            """
        )
    )
    program.chmod(0o755)
    pipe = str(node.folder.pipe(node.gpus[0].uuid, ATTACKER))
    env = {f"A{number}": "x" * 130_000 for number in range(8)}
    first = subprocess.Popen(
        [str(program), "-d"],
        env={**env, "CUDA_MPS_PIPE_DIRECTORY": pipe},
        user=ATTACKER,
        group=ATTACKER,
        start_new_session=True,
    )
    try:
        until(lambda: len(list(processes.named(MPS_STANDIN.name, ATTACKER))) >= LOOKALIKES)
        yield [first.pid]
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()


@pytest.mark.timing
def test_lookalikes_with_a_megabyte_of_environment_delay_nobodys_prolog(
    node: Node, lookalikes: List[int]
) -> None:
    for uid, job_id in ((VICTIM, 101), (ATTACKER, 1)):
        taken = seconds_of_prolog(node, job_id, uid)
        assert limited(node, job_id)
        assert taken < LATE_S * slowness(), (uid, taken)
    assert {daemon.uid for daemon in node.mps.daemons()} == {ATTACKER, VICTIM}
    assert lookalikes[0] not in {daemon.process.pid for daemon in node.mps.daemons()}


def test_a_process_table_without_end_ends_the_search_and_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_SEARCH_S", 0.0)
    with pytest.raises(TimeoutError, match="search of /proc"):
        node.mps.daemons()


@pytest.mark.skipif(daemons.why_no_mount() is not None, reason="needs a mount that everybody sees")
def test_a_full_pipe_folder_takes_nothing_from_others(node: Node) -> None:
    node.hook("prolog", node.env(1, uid=ATTACKER))
    uuid = node.gpus[0].uuid
    pipe = node.folder.pipe(uuid, ATTACKER)
    script = f"""\
import os
written, fd = 0, os.open({str(pipe)!r} + "/filler", os.O_CREAT | os.O_WRONLY)
try:
    while written < 64 << 20:
        written += os.write(fd, b"x" * 65536)
except OSError as error:
    print(written, error.errno)
try:
    for number in range(5000):
        os.close(os.open({str(pipe)!r} + f"/{{number}}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(number, error.errno)
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", script],
        user=ATTACKER,
        group=ATTACKER,
        capture_output=True,
        text=True,
        check=True,
    )
    (size, full), (count, no_more) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (full, no_more) == (errno.ENOSPC, errno.ENOSPC)
    assert size <= mps_limits.USER_TMPFS_MIB * MIB
    assert count < 1100
    for job_id, uid in ((101, VICTIM), (2, ATTACKER)):
        node.hook("prolog", node.env(job_id, uid=uid))
        assert limited(node, job_id)
    for job_id, uid in ((1, ATTACKER), (2, ATTACKER), (101, VICTIM)):
        node.hook("epilog", node.env(job_id, uid=uid))
    assert node.mps.daemons() == []
    assert left_of_daemons(node.folder) == []


def test_a_folder_nested_deeper_than_python_goes_ends_no_hook_and_no_sampler(node: Node) -> None:
    # Nothing is mounted that bounds it.
    conf = node.root / "slurm.conf"
    conf.write_text("JobContainerType=job_container/tmpfs\n")
    node.hook("prolog", node.env(1, uid=ATTACKER, SLURM_CONF=str(conf)))
    pipe = node.folder.pipe(node.gpus[0].uuid, ATTACKER)
    script = "for i in range(1100):\n    os.mkdir('d'); os.chdir('d')"
    subprocess.run(
        ["/usr/bin/python3", "-I", "-c", f"import os; os.chdir({str(pipe)!r})\n{script}"],
        user=ATTACKER,
        group=ATTACKER,
        check=True,
    )
    node.hook("epilog", node.env(1, uid=ATTACKER))
    assert jobs.get(node.folder, 1) is None
    Orphans(node.folder, node.config, ProblemLog(node.folder.root)).stop([])
    assert node.mps.daemons() == []
    subprocess.run(["rm", "-rf", str(pipe)], check=True)


def test_where_jobs_have_their_own_namespaces_nothing_is_mounted_that_they_would_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    monkeypatch.setenv("SLURM_CONF", str(conf))
    conf.write_text(
        "ClusterName=x\nJobContainerType=job_container/none\n# JobContainerType=job_container/tmpfs\n"
    )
    assert daemons.why_no_mount() is None
    conf.write_text("ClusterName=x\njobcontainertype = job_container/tmpfs\n")
    assert daemons.why_no_mount() == "jobs have mount namespaces of their own"


@pytest.mark.timing
@pytest.mark.parametrize("users", [1, 2])
def test_sixty_four_starts_at_once_are_all_limited(node: Node, users: int) -> None:
    hooks = [
        start(
            node, "prolog", job_id, (ATTACKER, VICTIM)[job_id % users], "0" if users == 1 else str(job_id % 4)
        )
        for job_id in range(1, 65)
    ]
    for hook in hooks:
        assert hook.wait(timeout=240) == 0
    late = {job_id: jobs.get(node.folder, job_id) for job_id in range(1, 65) if not limited(node, job_id)}
    assert late == {}, node.log()


def test_a_daemon_that_invents_servers_is_asked_about_a_few(node: Node) -> None:
    program, asked = node.root / "bin" / "inventive", node.root / "asked"
    asked.touch()
    asked.chmod(0o666)
    program.write_text(
        f'#!/bin/sh\nread line\necho "$line" >>{asked}\n'
        "case $line in get_server_list|set_default*) seq 1 9000 ;; *) echo ACTIVE ;; esac\n"
    )
    program.chmod(0o755)
    service = MpsService(node.folder, str(program))
    assert not service.faulted(node.gpus[0].uuid, ATTACKER)
    assert asked.read_text().count("get_server_status") == 4


def test_a_task_file_is_for_the_jobs_own_user(node: Node) -> None:
    node.hook("prolog", node.env(1, uid=ATTACKER))
    path = node.folder.task_file(1)
    for uid, readable in ((ATTACKER, True), (VICTIM, False)):
        done = subprocess.run(["cat", str(path)], user=uid, group=uid, capture_output=True, check=False)
        assert (done.returncode == 0) is readable
    env = {**node.env(1, uid=ATTACKER), "SLURM_SHARDS_ON_NODE": "4"}
    assert "CUDA_MPS_PIPE_DIRECTORY" in node.hook("task_prolog", env, user=ATTACKER, group=ATTACKER).stdout


def test_a_job_that_cannot_be_limited_says_so_in_its_record(node: Node) -> None:
    broken = node.root / "bin" / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    node = node.with_config(mps_control=str(broken))
    for name in ("prolog", "epilog"):
        assert node.hook(name, node.env(7)).returncode == 0
    (record,) = records.read_records(node.config.spool, 7)
    assert record.mode == WITHOUT_MPS
    assert "not limited, no MPS" in record.notes[0]
    assert "ended with 3" in record.notes[0]
