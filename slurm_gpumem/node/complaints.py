"""What goes wrong while sampling is said once, not once a second."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict

from slurm_gpumem.node.log import log


class Complaints:
    """Remembers what it has said last of each thing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._said: Dict[str, str] = {}

    def say(self, about: str, message: str) -> None:
        """Log it, unless that was the last thing said about it."""
        if self._said.get(about) != message:
            self._said[about] = message
            log(self._root, f"sampler: {message}")

    def settled(self, about: str) -> None:
        """It works again: the next trouble is news."""
        self._said.pop(about, None)

    def attempt(self, action: Callable[[], object]) -> None:
        """The sampler outlives full disks and stuck locks; it says so and goes on."""
        try:
            action()
        except OSError as error:
            self.say("files", str(error))
