"""Daemons of a dev cluster, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Callable, Dict, List

from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import Cluster
from tests.support.waiting import until

_STARTED: Dict[Path, List[subprocess.Popen[bytes]]] = {}


def restart_slurmctld(
    cluster: Cluster, how: signal.Signals = signal.SIGTERM, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Stop the controller and start it again with what it had saved."""
    pid = int((cluster.layout.run / "slurmctld.pid").read_text())
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    words = (part.decode().split("=", 1) for part in environ if part)
    # From 23.11 on a reconfigured controller is a new process, which was told of the sockets of the last one.
    env = {name: value for name, value in words if not name.startswith("SLURMCTLD_RECONF")}
    os.kill(pid, how)
    until(lambda: _is_over(pid))
    meanwhile()
    _start(cluster, ["/usr/sbin/slurmctld", "-D"], env)
    until(lambda: cluster.run(["squeue", "-h"]).returncode == 0, 120)


def restart_slurmd(cluster: Cluster) -> None:
    """Stop every node's slurmd and start it again."""
    for process in cluster.processes():
        if process.program == "slurmd" and processes.alive(process):
            argv = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            words = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
            os.kill(process.pid, signal.SIGTERM)
            until(lambda pid=process.pid: not Path(f"/proc/{pid}/exe").exists())
            env = dict(word.split("=", 1) for word in words if word)
            _start(cluster, ["/usr/sbin/slurmd", *argv[1:]], env)


def _start(cluster: Cluster, argv: List[str], env: Dict[str, str]) -> None:
    enter = cluster.layout.library / "enter-slurm-root"
    command = [str(enter)] if enter.exists() else []
    quiet, root = subprocess.DEVNULL, cluster.layout.root
    process = subprocess.Popen([*command, *argv], env=env, cwd=root, stdout=quiet, stderr=quiet)
    _STARTED.setdefault(root, []).append(process)


def stop_restarted(cluster: Cluster) -> None:
    """The cluster itself knows those that it has started."""
    for process in _STARTED.pop(cluster.layout.root, []):
        process.kill()
        process.wait()


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
