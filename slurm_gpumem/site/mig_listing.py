"""The MIG instances of this node: `nvidia-smi mig -lgi`, and the device files that give a job one of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
# |   0  MIG 1g.18gb          19        9          2:1     |
_ROW = re.compile(r"\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)\s+\d+:\d+\s*\|")


class Instance(NamedTuple):
    """One GPU instance."""

    gpu: int
    """The number of its GPU."""
    profile: str
    files: Tuple[str, ...] = ()
    """What a job must open to use it; empty where the driver does not say."""


def ask_instances(timeout_s: float = 10.0, minors: Path = MINORS) -> Tuple[Instance, ...]:
    """The instances of this node; none without MIG."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "mig", "-lgi"], capture_output=True, timeout=timeout_s, check=False
        )
        numbers = minors.read_text() if minors.exists() else ""
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_instances(done.stdout.decode(errors="replace"), numbers) if done.returncode == 0 else ()


def parse_instances(listing: str, minors: str) -> Tuple[Instance, ...]:
    """The rows of `nvidia-smi mig -lgi`, with their files by /proc/driver/nvidia-caps/mig-minors.

    An instance with several compute instances has no files: Slurm cannot give out parts of it.
    """
    numbers: Dict[str, str] = dict(line.split() for line in minors.splitlines() if len(line.split()) == 2)
    found = []
    for row in map(_ROW.fullmatch, map(str.strip, listing.splitlines())):
        if row is None:
            continue
        gpu, place = int(row[1]), f"gpu{row[1]}/gi{row[4]}"
        caps = [numbers.get(f"{place}/access"), numbers.get(f"{place}/ci0/access")]
        alone = f"{place}/ci1/access" not in numbers
        files = (f"/dev/nvidia{gpu}", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in caps if number))
        found.append(Instance(gpu, row[2], files if all(caps) and alone else ()))
    return tuple(found)
