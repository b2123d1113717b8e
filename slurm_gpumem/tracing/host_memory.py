"""What processes on this host hold, and how much a traced one may take."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mib(pid: int) -> int:
    """MiB in memory of a process; 0 where it has ended, or the system has no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def most_of_free_mib() -> int:
    """Three quarters of what is free, at least 1 GiB; no limit where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return 1 << 40
    return max(1024, free // 1024 * 3 // 4)
