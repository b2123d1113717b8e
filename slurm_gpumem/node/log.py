"""Say what went wrong on a node: to the system's log, or beside the state where there is none."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

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
