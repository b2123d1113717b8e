"""`gpumem top` on real daemons: two users, the admin, a login node, a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.node.conftest import needs_root
from tests.recovery.conftest import install_package
from tests.support.slurm_jobs import submit
from tests.support.waiting import remove_tree, until

pytestmark = [needs_root, pytest.mark.slurm]
MINE, THEIRS = "nobody", "daemon"


@dataclass(frozen=True)
class Site:
    """A cluster whose nodes measure, and a Python that everybody may run."""

    cluster: Cluster
    root: Path
    python: Path
    jobs: Dict[str, int]

    def top(self, *args: str, user: Optional[str] = MINE, **env: str) -> str:
        own = {"LC_ALL": "C.UTF-8", "HOME": "/nonexistent", **env}
        argv = [str(self.python), "-m", "slurm_gpumem", "top", *args]
        done = self.cluster.run(argv, user=user, cwd=Path("/"), env=own, timeout_s=120)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def top_json(self, *args: str, user: Optional[str] = MINE, **env: str) -> Dict[str, Any]:
        table: Dict[str, Any] = json.loads(self.top("--json", *args, user=user, **env))
        return table

    @property
    def as_from_a_login_node(self) -> Dict[str, str]:
        """Its node's folder is on another machine: only the node's own processes read it there."""
        return {"GPUMEM_RUN_DIR": str(self.cluster.layout.nodes / "n1")}


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    """Two jobs of one user and one of another on one GPU."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-"))
    root.chmod(0o755)
    python = install_package(root / "python")
    cluster = make_module_cluster(nodes=(NodeSpec("n1", gpus=2),), hooks=True)
    jobs = {}
    for name, user, shards, peak in (("a", MINE, 12, 11000), ("b", MINE, 8, 7000), ("c", THEIRS, 16, 9000)):
        command = f"gpumem-standin --peak {peak} --sm 0.25 --steps 2000 --seconds 600"
        options = [f"--gres=shard:{shards}", "-J", name, "--comment=gpumem/1:est=7000,req=8192,slow=1.15"]
        jobs[name] = int(submit(cluster, *options, command=command, output="/dev/null", user=user))
    made = Site(cluster, root, python, jobs)

    def measured() -> bool:
        seen = made.top_json(user=None)["jobs"]
        return sorted(job["now_mib"] or 0 for job in seen) == [7000, 9000, 11000]

    try:
        until(measured)
        yield made
    finally:
        cluster.stop()
        remove_tree(root)


def test_a_user_sees_their_own_jobs_with_what_is_beside_them(site: Site) -> None:
    jobs = {job["name"]: job for job in site.top_json()["jobs"]}
    assert set(jobs) == {"a", "b"}
    assert (jobs["a"]["share_mib"], jobs["a"]["now_mib"], jobs["a"]["peak_mib"]) == (12288, 11000, 11000)
    assert (jobs["a"]["neighbours"], jobs["a"]["neighbours_mib"]) == (2, 16000)
    assert (jobs["a"]["sm_active"], jobs["a"]["max_slowdown"]) == (0.25, 1.15)
    assert 0 < jobs["a"]["left_s"] <= 3600
    [other] = site.top_json(user=THEIRS)["jobs"]
    assert (other["name"], other["neighbours"], other["neighbours_mib"]) == ("c", 2, 18000)


def test_a_user_learns_no_number_and_no_name_of_another_users_job(site: Site) -> None:
    shown = site.top(user=THEIRS) + site.top("--json", user=THEIRS)
    assert MINE not in shown
    table = site.top_json(user=THEIRS)
    assert {job["job_id"] for job in table["jobs"]} == {site.jobs["c"]}
    assert "gpus" not in table


def test_root_sees_all_jobs_and_all_gpus_as_bars(site: Site) -> None:
    table = site.top_json(user=None)
    assert {job["name"] for job in table["jobs"]} == {"a", "b", "c"}
    assert [sum(held["shares"] for held in gpu["held"]) for gpu in table["gpus"]] == [36, 0]
    shown = site.top(user=None)
    assert "1 of 2 GPUs in use" in shown
    assert "36/40" in shown
    assert site.top_json("--me", user=None)["jobs"] == []


def test_of_another_node_root_reads_what_its_sampler_records(site: Site) -> None:
    def recorded() -> bool:
        table = site.top_json(user=None, GPUMEM_RUN_DIR="/nonexistent")
        return sorted(job["peak_mib"] or 0 for job in table["jobs"]) == [7000, 9000, 11000]

    until(recorded)


def test_from_a_login_node_a_step_in_ones_own_job_reads_it_and_ends_with_it(site: Site) -> None:
    table = site.top_json(**site.as_from_a_login_node)
    assert {job["name"]: job["now_mib"] for job in table["jobs"]} == {"a": 11000, "b": 7000}
    assert table["notes"] == [f"n1: through a step in job {site.jobs['a']} (srun --overlap)"]

    def steps() -> str:
        return site.cluster.run(["squeue", "-h", "-s", "-o", "%i"], check=True).stdout

    until(lambda: all(line.endswith((".batch", ".extern")) for line in steps().split()))


def test_what_cannot_be_read_from_there_is_said_in_a_line(site: Site) -> None:
    table = site.top_json("--no-steps", **site.as_from_a_login_node)
    assert table["notes"] == ["n1: not measured from here (--no-steps)"]
    assert [job["share_mib"] for job in table["jobs"]] == [12288, 8192]
    [note] = site.top_json(GPUMEM_RUN_DIR="/nonexistent")["notes"]
    assert note.startswith("n1: not measured from here (")
    assert "/nonexistent/own/65534.json" in note


def test_a_user_without_jobs_is_told_so(site: Site) -> None:
    assert "no job of yours runs on a GPU" in site.top(user="bin")


def test_on_a_terminal_it_is_drawn_again_and_again_and_leaves_the_screen_as_it_was(site: Site) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    env = {**os.environ, **site.cluster.env, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    argv = [str(site.python), "-m", "slurm_gpumem", "top", "-i", "0.1"]
    started = subprocess.Popen(
        argv,
        stdout=theirs,
        stdin=subprocess.DEVNULL,
        env=env,
        cwd="/",
        # A shell that runs the tests in the background ignores it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    while seen.count(b"\x1b[H") < 3 and time.monotonic() < deadline:
        seen += os.read(ours, 65536)
    started.send_signal(signal.SIGINT)
    threading.Timer(60, started.kill).start()
    try:
        while True:
            seen += os.read(ours, 65536)
    except OSError:
        pass  # the other end is closed
    assert started.wait(timeout=120) == 130
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l")
    assert seen.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
    assert b"\x1b[32m" in seen


def test_in_a_pipe_it_is_printed_once_and_without_escapes(site: Site) -> None:
    shown = site.top()
    assert "\x1b" not in shown
    assert shown.count("gpumem top") == 1
    assert "\x1b[32m" in site.top("--color", "always")


def test_tasks_of_an_array_stand_in_order_and_each_on_its_own_gpu(site: Site) -> None:
    command = "gpumem-standin --peak 500 --steps 2000 --seconds 600"
    array = submit(
        site.cluster, "--gres=shard:2", "-J", "sweep", "--array=1-3", command=command, output="/dev/null"
    )

    def tasks() -> List[Dict[str, Any]]:
        return [job for job in site.top_json(user=None)["jobs"] if job["name"] == "sweep"]

    try:
        until(lambda: len(tasks()) == 3)
        table = site.top_json(user=None)
        # The last task's own number is the array's, too.
        assert [job["shown"] for job in tasks()] == [f"{array}_{task}" for task in (1, 2, 3)]
        assert [len(job["gpus"]) for job in tasks()] == [1, 1, 1]
        assert sum(held["shares"] for gpu in table["gpus"] for held in gpu["held"]) == 36 + 3 * 2
        assert [one["array"] for one in table["arrays"]] == [int(array)]
        assert f"\n{array}_2 " in site.top("--array", user=None)
        more = submit(
            site.cluster, "--gres=shard:2", "-J", "more", "--array=1-9%2", command=command, output="/dev/null"
        )
        until(lambda: "  2 RUNNING, 7 PENDING\n" in site.top(user=None))
        assert f"\n{more}_" not in site.top(user=None)
        site.cluster.run(["scancel", more])
    finally:
        site.cluster.run(["scancel", array])
        until(lambda: not tasks())
