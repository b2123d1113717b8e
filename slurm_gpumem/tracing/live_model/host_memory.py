"""How much of this host's memory a traced process may take."""

from __future__ import annotations

from pathlib import Path


def most_of_free_mib() -> int:
    """Three quarters of what is free, at least 1 GiB; no limit where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return 1 << 40
    return max(1024, free // 1024 * 3 // 4)
