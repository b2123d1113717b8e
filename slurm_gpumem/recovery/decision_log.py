"""What was decided about which job: small files of SlurmUser's below StateSaveLocation.

A decision is written before it is carried out. Whoever comes later (after a kill, a crash, a change of
the configuration) carries out the same one, and a refusal stays a refusal.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Dict, Optional

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.files import remove
from slurm_gpumem.formats.decisions import BadDecisionsError, Decision, read_decisions, write_decisions

FOLDER_NAME = "gpumem-recovery"
_KEPT_S = 90 * 86_400
"""Longer than jobs run; job numbers are not given twice within it."""


def become_owner(state: Optional[Path]) -> None:
    """Root becomes SlurmUser, whose folder this is: files of root's there would stop SlurmUser's own hook."""
    if state is None or os.geteuid() != 0:
        return
    try:
        about = os.stat(state)
    except OSError as error:
        raise SlurmError(f"{state}: {error.strerror}; run this on the controller's host") from None
    if about.st_uid:
        os.setgroups([])
        os.setgid(about.st_gid)
        os.setuid(about.st_uid)


class Book:
    """The decisions about all jobs; SlurmError where none can be kept, because then none may be made."""

    def __init__(self, state: Optional[Path]) -> None:
        if state is None:
            raise SlurmError("scontrol show config names no StateSaveLocation to write decisions to")
        self._folder = state / FOLDER_NAME
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            about = os.stat(self._folder, follow_symlinks=False)
        except OSError as error:
            raise SlurmError(f"{self._folder}: decisions cannot be written: {error.strerror}") from None
        safe = stat.S_ISDIR(about.st_mode) and about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022
        if not safe:
            raise SlurmError(f"{self._folder}: is not a folder that only SlurmUser can write")

    def read(self, name: str) -> Dict[int, Decision]:
        """What was decided about a job, by the run that had failed."""
        try:
            return {one.run: one for one in read_decisions(self._path(name))}
        except (OSError, BadDecisionsError) as error:
            raise SlurmError(f"what was decided about job {name} is not known: {error}") from None

    def write(self, name: str, decision: Decision) -> None:
        """Add one; the caller holds the job's lock."""
        known = {**self.read(name), decision.run: decision}
        try:
            write_decisions(self._path(name), tuple(known[run] for run in sorted(known)))
        except OSError as error:
            raise SlurmError(f"{self._folder}: decisions cannot be written: {error.strerror}") from None

    def tidy(self) -> None:
        """Remove what is about jobs of long ago."""
        with os.scandir(self._folder) as entries:
            old = time.time() - _KEPT_S
            for path in [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_mtime < old]:
                remove(Path(path))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"
