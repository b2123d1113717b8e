"""Device files that stand for GPUs: Slurm requires character or block devices in gres.conf."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import List

from slurm_gpumem.errors import DevClusterError

_NULL_DEVICE = os.makedev(1, 3)
_FAMILIES = ("/dev/tty", "/dev/loop", "/dev/ttyS")


def make_devices(folder: Path, count: int) -> List[str]:
    """`count` device files numbered 0, 1 ...: our own as root, the machine's otherwise."""
    if count == 0:
        return []
    try:
        return _own(folder, count)
    except PermissionError:
        return _borrowed(count)


def _own(folder: Path, count: int) -> List[str]:
    paths = [folder / f"gpu{index}" for index in range(count)]
    for path in paths:
        if not path.exists():
            # Another name for /dev/null: opening it is harmless.
            os.mknod(path, 0o666 | stat.S_IFCHR, _NULL_DEVICE)
            path.chmod(0o666)
    return [str(path) for path in paths]


def _borrowed(count: int) -> List[str]:
    # Slurm checks only their kind and name; nobody opens them.
    for family in _FAMILIES:
        paths = [f"{family}{index}" for index in range(count)]
        if all(_is_device(path) for path in paths):
            return paths
    raise DevClusterError(
        f"found no {count} numbered device files ({', '.join(_FAMILIES)}…) to stand for GPUs; "
        "use fewer --gpus-per-node or start the cluster as root"
    )


def _is_device(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
