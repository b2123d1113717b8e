"""Only processes that are still what was started are ever touched."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.processes import Process
from slurm_gpumem.node.processes import start_of

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)


def start_sleep(tmp_path: Path) -> Process:
    return processes.start(
        ["sleep", "60"],
        program="sleep",
        name="sleep",
        log=tmp_path / "log",
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
    )


def test_a_started_process_is_alive_until_it_is_stopped(tmp_path: Path) -> None:
    process = start_sleep(tmp_path)
    assert processes.alive(process)
    assert processes.stop([process]) == []
    assert not processes.alive(process)


def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    process = start_sleep(tmp_path)
    strangers = [
        dataclasses.replace(process, start_ticks=process.start_ticks - 1),
        dataclasses.replace(process, program="slurmd"),
        dataclasses.replace(process, boot_id="another boot"),
    ]
    for stranger in strangers:
        assert not processes.alive(stranger)
    assert processes.stop(strangers) == []
    assert processes.alive(process)
    processes.stop([process])


def test_what_ignores_term_is_killed_after_the_patience(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    process = processes.identify(child.pid)
    assert process is not None
    begin = time.monotonic()
    assert processes.stop([process], patience_s=0.3) == [process]
    assert time.monotonic() - begin >= 0.3
    assert not processes.alive(process)
    child.wait()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = processes.identify(child.pid)
    assert process is not None
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None
    assert not processes.alive(process)
    child.wait()


def test_processes_are_found_by_program_and_working_folder(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert processes.working_in(tmp_path, "sleep") == [child.pid]
        assert processes.working_in(tmp_path, "slurmstepd") == []
        assert child.pid not in processes.working_in(tmp_path.parent, "sleep")
    finally:
        child.kill()
        child.wait()


def test_descendants_are_found_parents_first() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert shell.stdout is not None
    inner = int(shell.stdout.readline())
    try:
        assert processes.descendants([shell.pid]) == [shell.pid, inner]
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_a_signal_that_comes_while_a_daemon_is_started_waits_until_it_is_noted() -> None:
    order: List[str] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: order.append("signal"))
    try:
        with processes.signals_held():
            os.kill(os.getpid(), signal.SIGHUP)
            order.append("noted")
        assert order == ["noted", "signal"]
    finally:
        signal.signal(signal.SIGHUP, before)
