"""Problems while sampling are logged once, not once a second."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict

from slurm_gpumem.node.log import log


class ProblemLog:
    """Remembers the last problem it has logged for each subject."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logged: Dict[str, str] = {}

    def report(self, subject: str, message: str) -> None:
        """Log it, unless it is what was last logged for the subject."""
        if self._logged.get(subject) != message:
            self._logged[subject] = message
            log(self._root, f"sampler: {message}")

    def resolved(self, subject: str) -> None:
        """It works again: the next problem is logged, even if it is the same one."""
        self._logged.pop(subject, None)

    def attempt(self, action: Callable[[], object]) -> None:
        """The sampler outlives full disks and stuck locks; it logs them and goes on."""
        try:
            action()
        except OSError as error:
            self.report("files", str(error))
