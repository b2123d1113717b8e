"""The CPU time of jobs: real cgroups of both versions, real processes, and those that want to hide."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from subprocess import PIPE
from typing import Callable, Iterator, List

import pytest

from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.processes import stat_fields
from slurm_gpumem.node.sampler import cpu_clock
from slurm_gpumem.node.sampler.cpu_clock import CpuClock, spent_in
from tests.node.conftest import USER, needs_root
from tests.support.waiting import until

NOWHERE = Path("/nonexistent")
SPIN = "while :; do :; done"
ORPHAN = (
    "import os, sys\nif os.fork(): sys.exit()\nos.setsid()\nif os.fork(): os._exit(0)\n"
    "while os.path.exists(sys.argv[0]): pass\n"
)
"""Out of its parents' tree, and busy until its file is gone."""
Start = Callable[..., "subprocess.Popen[bytes]"]


def job(job_id: int, uid: int = USER, sluid: str = "") -> NodeJob:
    return NodeJob(job_id, uid, "u", (), "mps", time.time(), sluid=sluid)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of /proc that takes a slow machine longer than the sampler waits is no failure here."""
    monkeypatch.setattr(cpu_clock, "_SEARCH_S", 60.0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can read: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="gpumem-cpu-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a step of a job: a root's process that is called slurmstepd, and below it the user's command."""
    program = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("bash") or "/bin/bash", program)
    started: List[subprocess.Popen[bytes]] = []

    def make(job_id: int, command: str, step: str = "batch", name: str = "") -> subprocess.Popen[bytes]:
        run = f"setpriv --reuid={USER} --clear-groups env SLURM_JOB_ID={job_id} bash -c '{command}'"
        title = f"slurmstepd: [{name or job_id}.{step}]"
        words = ["bash", "-c", f"exec -a '{title}' {program} -c \"$0\"", f"{run}; sleep 600"]
        started.append(subprocess.Popen(words, start_new_session=True))
        return started[-1]

    yield make
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def below(pid: int) -> List[int]:
    """All of a process's descendants."""
    with contextlib.suppress(OSError):
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [*found, *(deeper for child in found for deeper in below(child))]
    return []


def own_s(pids: List[int]) -> float:
    fields = [stat_fields(pid) or ["0"] * 20 for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def spent(clock: CpuClock, *jobs: NodeJob) -> List[float]:
    found = clock.read(jobs)
    return [found.get(one.job_id, -1.0) for one in jobs]


@needs_root
def test_without_cgroups_the_processes_of_each_job_are_added_up(start: Start) -> None:
    clock = CpuClock(NOWHERE)
    step = start(771001, SPIN)
    start(771002, "sleep 600")
    until(lambda: spent(clock, job(771001))[0] > 0.3)
    # It goes on while we look: what was spent before and after bounds what the clock reads in between.
    least = own_s(below(step.pid))
    busy, idle = spent(clock, job(771001), job(771002))
    assert least - 0.3 < busy < own_s(below(step.pid)) + 0.3
    assert 0 <= idle < 0.3


@needs_root
def test_all_steps_of_a_job_count_and_children_that_have_ended_too(start: Start) -> None:
    clock = CpuClock(NOWHERE)
    # By the processor's time: in any part of a second a busy machine may give it none.
    burn = "(ulimit -t 1; while :; do :; done); sleep 600"
    for step in ("batch", "0"):
        start(771003, burn, step)
    until(lambda: spent(clock, job(771003))[0] > 1.5)


@needs_root
def test_a_process_that_leaves_the_jobs_tree_is_still_the_jobs(start: Start, open_folder: Path) -> None:
    script = open_folder / "orphan.py"
    script.write_text(ORPHAN)
    start(771004, f"/usr/bin/python3 {script}; sleep 600")
    clock = CpuClock(NOWHERE)
    try:
        until(lambda: spent(clock, job(771004))[0] > 0.5)
    finally:
        script.unlink()


@needs_root
def test_a_users_own_slurmstepd_makes_no_job(open_folder: Path) -> None:
    """Only root's counts: otherwise anybody could give another's job CPU time."""
    program = open_folder / "slurmstepd"
    title = "exec -a 'slurmstepd: [771005.batch]' " + f"{program} -c 'while :; do :; done'"
    shutil.copy(shutil.which("bash") or "/bin/bash", program)
    process = subprocess.Popen(["bash", "-c", title], user=USER, start_new_session=True)
    try:
        until(lambda: own_s([process.pid]) > 0.1)
        assert CpuClock(NOWHERE).read([job(771005, uid=1)]) == {}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@needs_root
def test_a_search_that_takes_too_long_is_given_up_and_not_tried_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(771006, "sleep 600")
    until(lambda: CpuClock(NOWHERE).read([job(771006)]))
    monkeypatch.setattr(cpu_clock, "_SEARCH_S", -1.0)
    clock = CpuClock(NOWHERE)
    assert clock.read([job(771006)]) == {}
    monkeypatch.setattr(cpu_clock, "_SEARCH_S", 60.0)
    assert clock.read([job(771006)]) == {}
    until(lambda: clock.read([job(771006)]))


@pytest.fixture(params=["cpuacct", "unified"])
def hierarchy(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup of this machine in which one may be made for a job, of version 1 or 2."""
    roots = {"cpuacct": ["cpuacct", "cpu,cpuacct"], "unified": ["unified", "."]}[request.param]
    file = {"cpuacct": "cpuacct.usage", "unified": "cpu.stat"}[request.param]
    for root in (Path("/sys/fs/cgroup") / name for name in roots):
        place = root / f"slurm-test-{os.getpid()}"
        if (root / file).exists() and os.geteuid() == 0:
            try:
                place.mkdir()
            except OSError:
                continue
            yield place
            inside = sorted(place.rglob("cgroup.procs"))
            until(lambda: not any(path.read_text() for path in inside))  # noqa: B023 - called here
            for folder in sorted(place.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    folder.rmdir()
            place.rmdir()
            return
    pytest.skip(f"needs root and a writable cgroup hierarchy with {file}")


def test_a_jobs_cgroup_counts_whatever_ran_in_it(hierarchy: Path, start: Start) -> None:
    """Also of processes that are gone, that left the tree, and that no longer say whose they are."""
    named = "sAB12CD34EF56GH" if (hierarchy / "cpu.stat").exists() else "job_771007"
    cgroup = hierarchy / "uid_65534" / named / "step_batch" / "task_0"
    cgroup.mkdir(parents=True)
    step = start(771007, "sleep 600")
    until(lambda: below(step.pid))
    for pid in (step.pid, *below(step.pid)):
        (cgroup / "cgroup.procs").write_text(str(pid))
    root = hierarchy.parent if (hierarchy / "cpu.stat").exists() else hierarchy.parent.parent
    clock, mine = CpuClock(root), job(771007, sluid="sAB12CD34EF56GH")
    before = spent(clock, mine)[0]
    assert before >= 0
    stray = subprocess.Popen(["bash", "-c", f"read; {SPIN}"], user=USER, stdin=PIPE, start_new_session=True)
    try:
        # It starts to work only there: what it took before is not the cgroup's.
        (cgroup / "cgroup.procs").write_text(str(stray.pid))
        elsewhere = own_s([stray.pid])
        assert stray.stdin is not None
        with stray.stdin as line:
            line.write(b"go\n")
        until(lambda: spent(clock, mine)[0] - before > 0.5)
        least = own_s([stray.pid]) - elsewhere
        assert least - 0.3 < spent(clock, mine)[0] - before < own_s([stray.pid]) - elsewhere + 0.3
    finally:
        stray.kill()
        stray.wait()
    assert spent(clock, mine)[0] - before > 0.5
    os.killpg(step.pid, signal.SIGKILL)
    step.wait()
    until(lambda: not (cgroup / "cgroup.procs").read_text())
    for folder in (cgroup, cgroup.parent, cgroup.parent.parent):
        folder.rmdir()
    assert clock.read([mine]) == {}


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        ("cpu.stat", "usage_usec 2500000\nuser_usec 1\n", 2.5),
        ("cpu.stat", "user_usec 1\n", None),
        ("cpu.stat", "", None),
        ("cpuacct.usage", "1500000000\n", 1.5),
        ("cpuacct.usage", "-1\n", None),
        ("cpuacct.usage", "x" * 100_000, None),
    ],
)
def test_a_cgroups_file_is_read_or_not_known(tmp_path: Path, name: str, text: str, seconds: object) -> None:
    (tmp_path / name).write_text(text)
    assert spent_in(tmp_path / name) == seconds
    assert spent_in(tmp_path / "gone" / name) is None
