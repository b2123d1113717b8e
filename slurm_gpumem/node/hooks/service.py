"""Start the sampler so that it outlives the hook: as a systemd unit, or as a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Dict, List, Mapping

from slurm_gpumem.files import lock_for_life
from slurm_gpumem.node.jobs import RunFolder

_KEPT = ("GPUMEM_SITE_CONFIG", "GPUMEM_RUN_DIR", "SLURM_CONF")


def sampler_runs(folder: RunFolder) -> bool:
    """Whether a sampler holds the node's lock."""
    try:
        handle = lock_for_life(folder.sampler_lock)
    except OSError:
        return False
    if handle is None:
        return True
    os.close(handle)
    return False


def start_sampler(folder: RunFolder, node: str) -> None:
    """Start one unless one runs or is being started."""
    starting = None if sampler_runs(folder) else lock_for_life(folder.sampler_start_lock)
    if starting is None:
        return
    env = sampler_environment(os.environ)
    try:
        subprocess.Popen(
            sampler_command(node, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
            # It holds our lock from now on, until it ends; a unit of systemd's does not inherit it.
            pass_fds=(starting,),
        )
    finally:
        os.close(starting)


def sampler_environment(hooks: Mapping[str, str]) -> Dict[str, str]:
    """What the sampler needs of the hook's environment; an empty SLURM_CONF would mislead squeue."""
    return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **{key: hooks[key] for key in _KEPT if hooks.get(key)}}


def sampler_command(node: str, env: Dict[str, str]) -> List[str]:
    """The command line: under systemd a unit of its own, since a prolog's children may die with the job."""
    command = [sys.executable, "-I", "-m", "slurm_gpumem.node.sampler", "--node", node]
    if os.geteuid() != 0 or not os.path.isdir("/run/systemd/system"):
        return command
    settings = [f"--setenv={key}={value}" for key, value in env.items()]
    return [
        "systemd-run",
        # A new name each time: systemd may still be busy with the one that has just ended.
        f"--unit=gpumem-sampler-{os.getpid()}",
        "--collect",
        "--quiet",
        "--slice=system.slice",
        *settings,
        *command,
    ]
