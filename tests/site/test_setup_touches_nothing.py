"""A trial beside a live cluster touches no file, port, job or daemon of it, and runs none of its programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.support.waiting import until

pytestmark = pytest.mark.slurm

NODES = (NodeSpec("n1", cpus=16, memory_mib=64_000), NodeSpec("c1", gpus=0, cpus=64, memory_mib=16_000))
HOOKS = (
    "Prolog", "Epilog", "PrologSlurmctld", "EpilogSlurmctld", "TaskProlog", "TaskEpilog", "SrunProlog",
    "HealthCheckProgram", "RebootProgram", "MailProg", "SlurmctldPrimaryOnProg", "SuspendProgram",
    "ResumeProgram",
)  # fmt: skip
LUA = """\
local mark = io.open("{mark}", "a"); mark:write("lua\\n"); mark:close()
function slurm_job_submit(job_desc, part_list, uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture
def marks(state_folder: Path) -> Path:
    """A file that every program of the site writes to."""
    path = state_folder / "marks"
    path.touch()
    path.chmod(0o666)
    program = state_folder / "leaves-a-mark"
    program.write_text(f'#!/bin/sh\necho "$0" >> {path}\n')
    program.chmod(0o755)
    (state_folder / "job_submit.lua").write_text(LUA.format(mark=path))
    return path


def contents(folder: Path) -> Dict[str, Tuple[int, int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            now = path.stat()
            found[str(path)] = (now.st_mtime_ns, now.st_ino, path.read_bytes())
    return found


def listening() -> set[str]:
    """Local TCP ports with a listener, by the kernel."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if line.split()[3] == "0A"}


def gpumem(cluster: Cluster, temporary: Path, *args: str) -> Any:
    program = str(Path(sys.executable).with_name("gpumem"))
    return cluster.run([program, *args], env={"TMPDIR": str(temporary)}, timeout_s=120)


def test_setup_beside_a_live_cluster_touches_nothing_of_it(
    make_cluster: Any, marks: Path, state_folder: Path
) -> None:
    program = state_folder / "leaves-a-mark"
    site = make_cluster(
        nodes=NODES,
        job_submit_lua=str(state_folder / "job_submit.lua"),
        extra_conf=(*(f"{key}={program}" for key in HOOKS), "SuspendTime=-1", "HealthCheckInterval=3600"),
    )
    until(lambda: "lua" in marks.read_text())
    held = site.run(["sbatch", "-H", "--parsable", "-o", "/dev/null", "--wrap", "true"], check=True).stdout
    temporary = state_folder / "tmp"
    temporary.mkdir(mode=0o755)
    marks.write_text("")
    before = contents(site.layout.conf)
    log = site.layout.log / "slurmctld.log"
    logged = len(log.read_text())
    ports = listening()
    daemons = {process.pid for process in site.processes() if processes.alive(process)}

    done = gpumem(site, temporary, "setup", "--reserve", "2G")
    assert done.returncode == 0, done.stderr
    assert "tried on a copy of this cluster (n1,c1, Slurm" in done.stderr
    assert "+NodeName=n1" in done.stdout

    assert marks.read_text() == ""
    assert contents(site.layout.conf) == before
    assert {process.pid for process in site.processes() if processes.alive(process)} == daemons
    assert {path.stat().st_uid for path in site.layout.root.rglob("*")} == {os.geteuid()}
    own = {f":{port:04X}" for port in _ports(site)}
    assert {line for line in listening() if line[8:] in own} == {line for line in ports if line[8:] in own}
    said = log.read_text()[logged:]
    assert not re.search(r"auth|munge|credential|registration|trial|protocol", said, re.IGNORECASE), said
    again = site.run(["sbatch", "-H", "--parsable", "-o", "/dev/null", "--wrap", "true"], check=True).stdout
    assert int(again) == int(held) + 1
    assert list(temporary.iterdir()) == []


def _ports(site: Cluster) -> list[int]:
    text = site.layout.slurm_conf.read_text()
    return [int(port) for port in re.findall(r"Port=(\d+)", text)]


def test_a_lost_terminal_ends_the_trial_and_its_daemons(make_cluster: Any, state_folder: Path) -> None:
    site = make_cluster(nodes=NODES)
    temporary = state_folder / "tmp"
    temporary.mkdir(mode=0o755)
    command = subprocess.Popen(
        [str(Path(sys.executable).with_name("gpumem")), "setup", "--reserve", "2G"],
        env={**os.environ, **site.env, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def slurmctld() -> list[int]:
        return [pid for folder in temporary.iterdir() for pid in processes.working_in(folder, "slurmctld")]

    until(lambda: bool(slurmctld()))
    started = [processes.identify(pid) for pid in slurmctld()]
    command.send_signal(signal.SIGHUP)
    assert command.wait(timeout=120) == 128 + signal.SIGHUP
    assert [process for process in started if process and processes.alive(process)] == []
    assert list(temporary.iterdir()) == []
