"""`gpumem report --me --brief`: one line at login, of what one's own jobs did lately; else nothing.

It reads the index as the last submission or report left it, and brings nothing up to date: a login waits for
nobody.
"""

from __future__ import annotations

import os
import sqlite3
import time
from typing import List, Optional, Sequence

from slurm_gpumem.accounting.schema import COMPLETED_WORD, RUNNING_WORD, SHARED_WORD, VERSION
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.text import count

ASKED = ("--me", "--brief")
_DAYS = 7
_SQL = f"""
SELECT sum(head), sum(head AND sharing = {SHARED_WORD}), sum(head AND ooms > 0),
    sum(head AND ooms > 0 AND state = {COMPLETED_WORD}), sum(head AND instr(hints, 'idle') > 0),
    sum(CASE WHEN alone_s IS NOT NULL AND used_s IS NOT NULL AND NOT redone AND state = {COMPLETED_WORD}
        THEN alone_s - used_s END)
FROM job WHERE uid = ? AND start >= ? AND state != {RUNNING_WORD}
"""


def main(argv: Sequence[str]) -> int:
    """Entry point; says nothing where there is nothing to say."""
    if sorted(argv) != sorted(ASKED):
        raise UsageError("--brief goes with --me alone: gpumem report --me --brief")
    line = brief_line(time.time())
    if line:
        print(line)
    return 0


def brief_line(now: float) -> Optional[str]:
    """The line; None without jobs in the last days, or an index that can be read."""
    try:
        path = load_accounting_config().own_index / "index.sqlite"
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.1) as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                return None
            found = connection.execute(_SQL, (os.geteuid(), now - _DAYS * 86_400)).fetchone()
    except (GpumemError, OSError, ValueError, sqlite3.Error):
        return None
    jobs, shared, ooms, finished, idle, saved_s = (value or 0 for value in found)
    if not jobs:
        return None
    words: List[str] = [f"{count(jobs, 'GPU job')} in {_DAYS} days, {shared} shared"]
    if saved_s >= 360:
        words.append(f"{saved_s / 3600:.1f} GPU-hours saved")
    if ooms:
        words.append(f"{ooms} out of memory, {finished} finished later")
    if idle:
        words.append(f"{idle} idle for long")
    return f"gpumem: {'; '.join(words)} (gpumem report)"
