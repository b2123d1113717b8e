"""Files that two processes may touch at once: atomic writes, locks with a deadline, one extra reader."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional, Union

from slurm_gpumem.errors import UsageError

_ACL_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_READ, _READ_WRITE = 4, 6


class LockTimeoutError(OSError):
    """Somebody else held the lock for longer than we may wait."""


def write_atomic(
    path: Path,
    data: Union[str, bytes],
    *,
    mode: int = 0o644,
    reader_uid: Optional[int] = None,
    reader_gid: Optional[int] = None,
    durable: bool = False,
) -> None:
    """Replace the file in one step: a reader sees the old or the new content, never a part.

    `reader_uid` may read it though it stays root's: by an access list, or where the file system
    has none, by the group `reader_gid`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # What lies there by that name is a killed writer's, or a trap: never written into, only removed.
    remove(temporary)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(handle, data.encode() if isinstance(data, str) else data)
            os.fchmod(handle, mode)
            if reader_uid is not None and reader_uid != os.geteuid():
                _allow_reader(handle, reader_uid, reader_gid)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise


def save(path: Path, data: Union[str, bytes], *, mode: Optional[int] = None) -> None:
    """Write a file that somebody named: whole or not at all, by default as their umask says.

    A link stays one, a pipe or a device is written to and never replaced. UsageError says why it cannot be.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(data.encode() if isinstance(data, str) else data)
            return
        mask = os.umask(0o077)
        os.umask(mask)
        write_atomic(target, data, mode=0o666 & ~mask if mode is None else mode)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def check_target(name: str, example: str) -> Path:
    """The path of a file that is to be written; what stands in its way is told before the work is done."""
    path = Path(os.path.realpath(name))
    if path.is_dir():
        raise UsageError(f"{name} is a folder; name a file in it, like {name.rstrip('/')}/{example}")
    if not path.parent.is_dir():
        raise UsageError(f"{name}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) and (path.is_file() or not path.exists()):
        raise UsageError(f"{name}: the folder {path.parent} cannot be written to")
    return Path(name)


def write_json(path: Path, value: Any, **options: Any) -> None:
    """`write_atomic` for JSON: one line, so that a person can still read it with `jq`."""
    write_atomic(path, json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n", **options)


def read_json(path: Path) -> Any:
    """The file's value; None when it is missing or no JSON."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def remove(path: Path) -> bool:
    """Unlink it; False when there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when the holder dies, however it dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while not _try_lock(handle):
            if time.monotonic() >= deadline:
                raise LockTimeoutError(errno.ETIMEDOUT, f"lock not free within {timeout_s:g} s", str(path))
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def lock_for_life(path: Path) -> Optional[int]:
    """A lock that is held until this process ends, as an open handle; None when another holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if _try_lock(handle):
        return handle
    os.close(handle)
    return None


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _allow_reader(handle: int, uid: int, gid: Optional[int]) -> None:
    entries = [
        (_USER_OBJ, _READ_WRITE, _NO_ID),
        (_USER, _READ, uid),
        (_GROUP_OBJ, _READ, _NO_ID),
        (_MASK, _READ, _NO_ID),
        (_OTHER, 0, _NO_ID),
    ]
    acl = struct.pack("<I", _ACL_VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(handle, "system.posix_acl_access", acl)
    except OSError:
        # No access lists on this file system (NFSv4, some overlays): the user's own group reads it.
        if gid is not None:
            os.fchown(handle, -1, gid)
