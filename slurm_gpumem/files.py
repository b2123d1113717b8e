"""Files that several processes or users may touch: atomic writes, careful reads, locks, access lists."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import struct
import time
from _thread import LockType, allocate_lock, get_native_id
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterable,
    Iterator,
    Optional,
    Tuple,
    Union,
)

from slurm_gpumem.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

_ACL_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_ENTER, _READ, _READ_WRITE = 1, 4, 6
_OPEN_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAFT_NAME = re.compile(r"\..+\.[0-9]+\.tmp")
_DRAFT_DEAD_S = 86_400.0
"""No draft is written for a day: its writer was killed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.064
_OPEN_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


_turns: Dict[str, LockType] = {}
"""By a lock's path: which thread of this process is at it."""


class LockTimeoutError(OSError):
    """Somebody else held the lock for longer than we may wait."""


class RefusedFileError(OSError):
    """A file that is not what it should be; `strerror` says why in a few words."""


# -- Writing ---------------------------------------------------------------------------------------


def write_atomic(
    path: Union[str, Path],
    content: Union[str, bytes],
    *,
    mode: Optional[int] = 0o644,
    reader_uid: Optional[int] = None,
    reader_gid: Optional[int] = None,
    also: Collection[int] = (),
    durable: bool = False,
) -> None:
    """Replace the file in one step: a reader sees the old or the new content, never a part.

    Without `mode` the umask decides who may read it. `reader_uid` may read it though it stays ours: by an
    access list, or where the file system has none, by the group `reader_gid`. With a list `also` may, too.
    """
    with _draft(path, mode, durable) as (handle, _):
        write_all(handle, content.encode() if isinstance(content, str) else content)
        if reader_uid is not None and reader_uid != os.geteuid():
            _allow_reader(handle, reader_uid, reader_gid, also)


@contextmanager
def replaced(path: Path, *, mode: Optional[int] = None, durable: bool = False) -> Iterator[Path]:
    """A draft to write by other means, which takes the file's place if nothing is raised."""
    with _draft(path, mode, durable) as (_, draft):
        yield path.with_name(os.path.basename(draft))


@contextmanager
def _draft(path: Union[str, Path], mode: Optional[int], durable: bool) -> Iterator[Tuple[int, str]]:
    # As _DRAFT_NAME. A number for each thread; that of a process's first thread is the process's own.
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{get_native_id()}.tmp")
    # What lies there by that name is a killed writer's, or a trap: never written into, only removed.
    remove(draft)
    handle = os.open(draft, _OPEN_DRAFT, 0o666 if mode is None else 0o600)
    try:
        try:
            if mode is not None:
                os.fchmod(handle, mode)
            yield handle, draft
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(draft, path)
    except BaseException:
        remove(draft)
        raise


def write_json(path: Path, value: Any, **options: Any) -> None:
    """`write_atomic` for JSON: one line, so that a person can still read it with `jq`."""
    write_atomic(path, json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n", **options)


def remove(path: Union[str, Path]) -> bool:
    """Unlink it; False when there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_dead_drafts(folder: Union[str, Path]) -> int:
    """Remove what killed writers left in a folder of ours; the number removed."""
    late, removed = time.time() - _DRAFT_DEAD_S, 0
    try:
        with os.scandir(folder) as entries:
            drafts = [entry for entry in entries if _DRAFT_NAME.fullmatch(entry.name)]
        for draft in drafts:
            if draft.stat(follow_symlinks=False).st_mtime < late:
                removed += remove(draft.path)
    except OSError:
        pass  # gone since, or not to be written to: they are only in the way of nobody
    return removed


def write_all(handle: int, data: bytes) -> None:
    """Write all of it to an open file."""
    while data:
        data = data[os.write(handle, data) :]


def keep_newest(folder: Union[str, Path], most: int) -> None:
    """Remove the oldest files of a folder that is to hold `most` at most."""
    with os.scandir(folder) as entries:
        found = list(entries)
    if len(found) > most:
        found.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in found[most:]:
            remove(entry.path)


# -- Reading ---------------------------------------------------------------------------------------


def read_plain(path: Union[str, Path], *, most_bytes: int, owners: Optional[Collection[int]] = None) -> bytes:
    """Read a file that anybody may have put there: follows no link, waits for nobody, reads a part at most.

    RefusedFileError when it is no plain file, belongs to none of `owners`, or is larger than `most_bytes`.
    """
    return read_opened(open_plain(path), most_bytes=most_bytes, owners=owners)


def open_plain(path: Union[str, Path]) -> int:
    """The first half of `read_plain`, for who opens many files before reading them; a FIFO opens, too."""
    return os.open(path, _OPEN_PLAIN)


def read_opened(handle: int, *, most_bytes: int, owners: Optional[Collection[int]] = None) -> bytes:
    """The second half of `read_plain`; closes the handle."""
    try:
        about = check_plain(handle, owners)
        data = os.read(handle, min(about.st_size, most_bytes) + 1)
        while len(data) < about.st_size and len(data) <= most_bytes:
            more = os.read(handle, most_bytes + 1 - len(data))
            if not more:
                break
            data += more
    finally:
        os.close(handle)
    if len(data) > most_bytes:
        raise RefusedFileError(errno.EFBIG, f"larger than {most_bytes / MIB:g} MiB")
    return data


def check_plain(handle: int, owners: Optional[Collection[int]] = None) -> os.stat_result:
    """What the system knows of an open file; RefusedFileError unless it is a plain one of these `owners`."""
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        raise RefusedFileError(errno.EINVAL, "no plain file")
    if owners is not None and about.st_uid not in owners:
        raise RefusedFileError(errno.EPERM, f"belongs to user {about.st_uid}")
    return about


def read_json_of(path: Union[str, Path], *, owners: Collection[int], most_bytes: int) -> Any:
    """The value of a file that `read_plain` takes; None when there is none, or no JSON."""
    try:
        return json.loads(read_plain(path, most_bytes=most_bytes, owners=owners))
    except (OSError, ValueError, RecursionError):
        return None


def read_json(path: Path) -> Any:
    """The file's value; None when it is missing or no JSON."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


# -- Locks -----------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when the holder dies, however it dies.

    Threads of one process wait in a queue for it: only one of them at a time asks the kernel.
    """
    deadline, pause = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    late = LockTimeoutError(errno.ETIMEDOUT, f"lock not free within {timeout_s:g} s", str(path))
    turn = _turns.setdefault(str(path), allocate_lock())
    if not turn.acquire(True, max(0.0, timeout_s)):
        raise late
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not _try_lock(handle):
                if time.monotonic() >= deadline:
                    raise late
                time.sleep(pause)
                # Many may wait for one lock; none of them may keep the processor from who holds it.
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            yield
        finally:
            os.close(handle)
    finally:
        turn.release()


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


# -- Who may read ----------------------------------------------------------------------------------


def allow_readers(
    target: Union[int, Path], uids: Iterable[int] = (), gids: Iterable[int] = (), *, folder: bool = False
) -> None:
    """Let these users and groups read a file besides its owner, nobody else; OSError without access lists.

    A `folder` may also be entered by them.
    """
    enter = _ENTER if folder else 0
    read = _READ | enter
    entries = [(_USER_OBJ, _READ_WRITE | enter, _NO_ID)]
    entries += [(_USER, read, uid) for uid in sorted(set(uids))]
    entries += [(_GROUP_OBJ, 0, _NO_ID)]
    entries += [(_GROUP, read, gid) for gid in sorted(set(gids))]
    entries += [(_MASK, read, _NO_ID), (_OTHER, 0, _NO_ID)]
    packed = struct.pack("<I", _ACL_VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(target, "system.posix_acl_access", packed)


def primary_group(uid: int) -> Optional[int]:
    """The user's primary group; None when nobody has that number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return None


def _allow_reader(handle: int, uid: int, gid: Optional[int], also: Collection[int]) -> None:
    try:
        allow_readers(handle, [uid, *also])
    except OSError:
        # No access lists on this file system (NFSv4, some overlays): the user's own group reads it.
        if gid is not None:
            os.fchown(handle, -1, gid)
