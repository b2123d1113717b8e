"""MPS daemons that nobody refers to any more, because the hook that should have stopped them was killed.

A daemon has a folder for as long as it lives, so those are looked at first, which costs next to nothing.
Searching all of /proc for daemons without one costs a few tens of milliseconds on a large node: seldom.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Iterable, List, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import locked
from slurm_gpumem.node.gpus import UUID
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.log import ProblemLog
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.mps.mps_limits import stop_unneeded

_SEARCH_EVERY = 10
"""/proc is searched too once in this many rounds: every ten minutes at the default interval."""

_ROUND_S = 2.0
"""A daemon that its owner has stopped takes this long to end; the others wait for the next round."""


class Orphans:
    """Finds and stops them."""

    def __init__(self, folder: RunFolder, config: NodeConfig, problems: ProblemLog) -> None:
        self._folder = folder
        self._config = config
        self._problems = problems
        self._rounds = 0

    def stop(self, here: Iterable[NodeJob], *, search: bool = False) -> None:
        """Stop those that none of these jobs needs; each is looked at again under its lock before that."""
        needed = {(uuid, job.daemon_uid) for job in here if job.uses_mps for uuid in job.gpus}
        suspects = self._with_folders() - needed
        if search or self._rounds % _SEARCH_EVERY == 0:
            service = MpsService(self._folder, self._config.mps_control)
            self._problems.attempt(lambda: suspects.update((d.uuid, d.uid) for d in service.daemons()))
            suspects -= needed
        self._rounds += 1
        deadline = time.monotonic() + _ROUND_S
        for uuid, uid in suspects:

            def sweep(uuid: str = uuid, uid: int = uid) -> None:
                with locked(self._folder.daemon_lock(uuid, uid), 0.0):
                    stop_unneeded(self._folder, self._config, uuid, uid)

            if time.monotonic() < deadline:
                self._problems.attempt(sweep)
        for uuid in _names_in(self._folder.mps):
            with contextlib.suppress(OSError):  # somebody's daemon is on that GPU
                (self._folder.mps / uuid).rmdir()

    def _with_folders(self) -> Set[Tuple[str, int]]:
        return {
            (uuid, int(uid))
            for uuid in _names_in(self._folder.mps)
            if UUID.fullmatch(uuid)
            for uid in _names_in(self._folder.mps / uuid)
            if uid.isdigit()
        }


def _names_in(folder: Path) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
