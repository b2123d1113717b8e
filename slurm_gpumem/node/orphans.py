"""MPS daemons that nobody refers to any more, because the hook that should have stopped them was killed.

A daemon has a folder for as long as it lives, so those are looked at first, which costs next to nothing.
Searching all of /proc for daemons without one costs a few tens of milliseconds on a large node: seldom.
"""

from __future__ import annotations

from typing import Iterable, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import locked
from slurm_gpumem.node import hook
from slurm_gpumem.node.gpus import UUID
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.mps import MpsService
from slurm_gpumem.node.problem_log import ProblemLog

_SEARCH_EVERY = 40
"""/proc is searched too once in this many rounds: every ten minutes at the default interval."""


class Orphans:
    """Finds and stops them."""

    def __init__(self, folder: RunFolder, config: NodeConfig, problems: ProblemLog) -> None:
        self._folder = folder
        self._config = config
        self._problems = problems
        self._rounds = 0

    def stop(self, here: Iterable[NodeJob], *, search: bool = False) -> None:
        """Stop those that none of these jobs needs; before that, all is looked at again under the lock."""
        needed = {(uuid, job.uid) for job in here if job.mode == "mps" for uuid in job.gpus}
        suspects = self._with_folders(needed)
        if search or self._rounds % _SEARCH_EVERY == 0:
            service = MpsService(self._folder, self._config.mps_control)
            suspects |= {d.uuid for d in service.daemons() if (d.uuid, d.uid) not in needed}
        self._rounds += 1
        for uuid in suspects:

            def sweep(uuid: str = uuid) -> None:
                with locked(self._folder.gpu_lock(uuid), 1.0):
                    hook.sweep(self._folder, self._config, [uuid])

            self._problems.attempt(sweep)

    def _with_folders(self, needed: Set[Tuple[str, int]]) -> Set[str]:
        suspects = set()
        for uuid in hook.names_in(self._folder.mps):
            if UUID.fullmatch(uuid):
                owners = {int(name) for name in hook.names_in(self._folder.mps / uuid) if name.isdigit()}
                if not owners or any((uuid, owner) not in needed for owner in owners):
                    suspects.add(uuid)
        return suspects
