"""The folder that a command shares with us: how much is in it, and how it is removed, whatever it holds."""

from __future__ import annotations

import os
import shutil
import subprocess

_ENTRY_BYTES = 4096
"""What the name of an empty file or folder takes at most, about."""


def written_mib(folder: str, most_mib: int) -> int:
    """What lies in it; more than `most_mib` as well where it cannot be looked at."""
    total, waiting = 0, [folder]
    while waiting and total >> 20 <= most_mib:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    about = entry.stat(follow_symlinks=False)
                    total += max(_ENTRY_BYTES, about.st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue  # removed in between
        except OSError:
            return most_mib + 1  # closed to us, or deeper than a path can be long
    return total >> 20


def remove(folder: str) -> None:
    """All of it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        pass  # many folders in each other
    if os.path.lexists(folder):
        for words in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*words, "--", folder], stderr=subprocess.DEVNULL, check=False)
