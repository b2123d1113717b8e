"""Brings records to the spool beside the work for hooks: a disk takes longer than all the rest of a hook."""

from __future__ import annotations

import threading
from typing import List, NamedTuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node import hook
from slurm_gpumem.node.hooks.inbox import Request
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log

_PAUSE_S = 0.2
"""A job that is over by then is written once, not twice."""


class _Served(NamedTuple):
    config: NodeConfig
    request: Request
    announced: bool
    """False after the epilog of a run that no prolog announced."""


class Spooler:
    """A thread that opens the records of jobs that have come, and brings closed ones to the spool.

    What it does not live to write is not lost: a job's file and its closed record are in /run, and the
    sampler writes them at its next turn.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._served: List[_Served] = []
        self._come = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    def start(self) -> None:
        """From now on what is put here is written."""
        self._thread.start()

    def put(self, config: NodeConfig, request: Request, *, announced: bool) -> None:
        """This hook has been served."""
        with self._lock:
            self._served.append(_Served(config, request, announced))
        self._come.set()

    def close(self, timeout_s: float) -> None:
        """Write what was put here, in this time."""
        self._ended.set()
        self._come.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._come.wait()
            self._ended.wait(_PAUSE_S)
            self._come.clear()
            with self._lock:
                served, self._served = self._served, []
            for config, request, announced in served:
                try:
                    if not announced:
                        hook.record_unannounced(self._folder, config, request.env, request.at)
                    hook.to_spool(self._folder, config, request.env)
                except Exception as error:  # noqa: BLE001 - one bad record must not keep back the others
                    log(self._folder.root, f"records: {type(error).__name__}: {error}")
