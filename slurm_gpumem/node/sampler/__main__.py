"""`python -I -m slurm_gpumem.node.sampler`, one per node while shared jobs run there."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import List, Optional, Sequence, Tuple

import slurm_gpumem
from slurm_gpumem.config.node import NodeConfig, load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import lock_for_life
from slurm_gpumem.node import jobs
from slurm_gpumem.node.gpus import find_gpus
from slurm_gpumem.node.hooks.hook_server import HookServer
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mps.client_exit import EndServer, Exits
from slurm_gpumem.node.processes import go_ahead_of_jobs
from slurm_gpumem.node.sampler.sampler import Sampler
from slurm_gpumem.node.sources.base import NoSource
from slurm_gpumem.node.sources.choose import choose_source
from slurm_gpumem.node.sources.nvml import NvmlSource

_UNPACKED_S = 30.0
"""An upgrade that is still at work is given this long after it has replaced our first file."""


class _OwnCode:
    """The package as this process has read it. An upgrade replaces its files under us, and what we load or
    start later would be of the other version.
    """

    def __init__(self) -> None:
        self._path = slurm_gpumem.__file__
        self._read = self._stamp()

    def is_replaced(self) -> bool:
        """Whether another version lies there, for a while already."""
        try:
            return self._stamp() != self._read and time.time() - os.stat(self._path).st_ctime > _UNPACKED_S
        except OSError:
            return False  # it is being unpacked, or was removed: we go on as we are

    def _stamp(self) -> Tuple[int, int]:
        about = os.stat(self._path)
        return about.st_ino, about.st_mtime_ns


def main(argv: Sequence[str]) -> int:
    """Run until no shared job has been here for a while, or until asked to end."""
    parser = argparse.ArgumentParser(prog="gpumem-sampler", description=__doc__)
    parser.add_argument(
        "--node", default=os.uname().nodename.partition(".")[0], help="the node's name in Slurm"
    )
    parser.add_argument("--stay", action="store_true", help="keep running when no shared job is here")
    args = parser.parse_args(argv)
    folder, config = RunFolder(run_dir()), load_node_config(site_config_path())
    folder.make()
    handle = lock_for_life(folder.sampler_lock)
    if handle is None:
        return 0
    ended: List[int] = []
    code = _OwnCode()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    while not ended:
        # Jobs wait for us to start: a hook shall not wait for long where others, or our own looks, compute.
        go_ahead_of_jobs()
        sys.setswitchinterval(0.001)
        server = HookServer(folder)
        server.start()
        _sample_until_idle(folder, config, args.node, args.stay, ended, code)
        server.close()
        os.close(handle)
        if not ended and code.is_replaced():
            log(folder.root, "sampler: begins again with the version that was installed meanwhile")
            os.execv(sys.executable, [sys.executable, "-I", "-m", "slurm_gpumem.node.sampler", *argv])
        # A prolog notes its job first and looks for a sampler then; we do it the other way round.
        if ended or not jobs.all_jobs(folder):
            return 0
        handle = lock_for_life(folder.sampler_lock)
        if handle is None:
            return 0
    return 0


def _serve_ends(folder: RunFolder, exits: Exits) -> Optional[EndServer]:
    try:
        server = EndServer(folder, exits)
    except OSError as error:
        log(folder.root, f"processes that end may take their neighbours along: {folder.end_socket}: {error}")
        return None
    server.start()
    return server


def _sample_until_idle(
    folder: RunFolder, config: NodeConfig, node: str, stay: bool, ended: List[int], code: _OwnCode
) -> None:
    gpus = find_gpus(config, node)
    sampler = Sampler(folder, config, node, choose_source(config, node, gpus), gpus)
    blind = sampler.source.name in (NvmlSource.name, NoSource.name)
    unknown = "; without SM activity only jobs without GPU processes are known to be idle" if blind else ""
    log(folder.root, f"sampler: {len(gpus)} GPUs, source {sampler.source.name}{unknown}")
    ends = _serve_ends(folder, sampler.exits)
    busy = due = time.monotonic()
    while not ended and not code.is_replaced():
        try:
            here = sampler.tick()
        except Exception as error:  # noqa: BLE001 - one bad look must not end the measuring of all jobs
            sampler.problems.report("look", f"{type(error).__name__}: {error}")
            here = True
        if here:
            busy = time.monotonic()
        elif not stay and time.monotonic() - busy > config.idle_exit_s:
            break
        due = max(due + config.interval_s, time.monotonic())
        sampler.rest(due)
    if ends is not None:
        ends.close()
    sampler.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
