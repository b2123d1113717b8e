"""A node without slurm.conf: `python -m tests.site.configless_cluster FOLDER`, in a mount namespace.

slurmd fetches its configuration from slurmctld, authenticated through the host's own munge socket, which
the namespace has in its own /run. Prints what the Prolog and gpusbatch found there, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from slurm_gpumem.devcluster.cluster import up
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes
from tests.support.waiting import until

GPUSBATCH = Path(sys.executable).with_name("gpusbatch")


def main(folder: Path) -> None:
    hook = folder / "prolog.sh"
    hook.write_text(f'#!/bin/sh\necho "$SLURM_CONF" >{folder}/conf\nsqueue -h -o %i >{folder}/jobs 2>&1\n')
    hook.chmod(0o755)
    cluster = up(
        ClusterSpec(
            state=folder / "state",
            nodes=default_nodes(1),
            extra_conf=("SlurmctldParameters=enable_configless", "PrologFlags=Alloc", f"Prolog={hook}"),
        )
    )
    (running,) = (process for process in cluster.processes() if process.program == "slurmd")
    os.kill(running.pid, signal.SIGTERM)
    until(
        lambda: not Path(f"/proc/{running.pid}/fd").exists() or not os.listdir(f"/proc/{running.pid}/fd"), 30
    )
    port = re.findall(r"SlurmctldPort=(\d+)", cluster.layout.slurm_conf.read_text())[0]
    Path("/run/munge").mkdir()
    Path("/run/munge/munge.socket.2").symlink_to(cluster.layout.munge_socket)
    bare = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    argv = ["slurmd", "-D", "-N", "n1", "--conf-server", f"127.0.0.1:{port}"]
    slurmd = subprocess.Popen(argv, env=bare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: Path("/run/slurm/conf/slurm.conf").exists())
        # The node answers some moments after it has its configuration.
        until(lambda: cluster.run(["srun", "--gres=shard:2", "true"]).returncode == 0)
        words = [str(GPUSBATCH), "--dry-run", "--gpu-mem", "12G", "--wrap", "true"]
        login = subprocess.run(words, env=bare, capture_output=True, text=True, check=False)
        found = {
            "conf": (folder / "conf").read_text().strip(),
            "jobs": (folder / "jobs").read_text().split(),
            "login": login.stdout,
            "said": login.stderr,
        }
        print(json.dumps(found))
    finally:
        slurmd.terminate()
        slurmd.wait()
        cluster.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
