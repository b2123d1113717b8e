"""Say what went wrong on a node: to the system's log, or beside the state where there is none."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Callable, Dict

_LIMIT = 1_000_000


def log(run_dir: Path, message: str) -> None:
    """One line; logging itself never fails a hook."""
    line = " ".join(message.split())[:2000]
    try:
        if os.geteuid() == 0 and os.path.exists("/dev/log"):
            import syslog

            syslog.openlog("gpumem", syslog.LOG_PID, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_WARNING, line)
            return
        path = run_dir / "log"
        if path.exists() and path.stat().st_size > _LIMIT:
            path.replace(run_dir / "log.1")
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} [{os.getpid()}] {line}\n")
    except OSError as error:
        # A full disk must not stop a hook; whoever runs it by hand still sees why.
        print(f"gpumem: {line} (and the log cannot be written: {error})", file=sys.stderr)


# Problems while sampling are logged once, not once a second.


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
