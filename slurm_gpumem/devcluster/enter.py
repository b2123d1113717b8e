"""Run one program inside another file tree, in its own mount namespace.

Called as `python3 -I enter.py VIEW.json PROGRAM ARGUMENTS...`; VIEW.json lists the mounts.
It needs only the standard library, so that any user can run it from a copy. An ordinary user
gets a user namespace that keeps the user id: Slurm's authentication sees the real uid.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
MARKER = "run/gpumem-slurm-root"
"""Exists only inside, where entering again would fail and is not needed."""


def main(argv: List[str]) -> None:
    """Make the mounts of the view, then become the program."""
    view: Dict[str, Any] = json.loads(Path(argv[0]).read_text())
    program = argv[1:]
    cwd = os.getcwd()
    try:
        _separate()
        _build(view["root"], view["folders"], view["files"])
        os.chroot(view["root"])
        # A mount over the current directory is only visible after entering it again.
        os.chdir(cwd if os.path.isdir(cwd) else "/")
        os.execv(program[0], program)
    except OSError as error:
        hint = "; try it as root" if os.geteuid() else ""
        sys.exit(f"gpumem: cannot run {program[0]} in {view['root']}: {error}{hint}")


def _separate() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    # Without this, a shared root would show our mounts to everybody.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def _build(root: str, folders: List[str], files: List[str]) -> None:
    for folder in folders:
        _mount(folder, f"{root}{folder}", None, _MS_BIND | _MS_REC)
    for file in files:
        _mount(file, f"{root}{file}", None, _MS_BIND)
    _mount("tmpfs", f"{root}/run", "tmpfs", 0, "mode=755")
    Path(root, MARKER).touch()


def _mount(
    source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[str] = None
) -> None:
    _call("mount", _encode(source), _encode(target), _encode(kind), flags, _encode(data), what=target)


def _encode(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else os.fsencode(text)


def _call(function: str, *args: Any, what: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}", what or None)


if __name__ == "__main__":
    main(sys.argv[1:])
