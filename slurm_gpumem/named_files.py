"""Files that somebody named on a command line: written whole, and never through another user's trap."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Union

from slurm_gpumem.errors import UsageError
from slurm_gpumem.files import RefusedFileError, write_all, write_atomic

_MOST_LINKS = 40
_EVERYBODYS = stat.S_ISVTX | stat.S_IWOTH
_OPEN_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def save(path: Path, data: Union[str, bytes], *, mode: Optional[int] = None) -> None:
    """Write a file that somebody named: whole or not at all, by default as their umask says.

    A link stays one unless it is a trap, a pipe or a device is written to and never replaced. UsageError says
    why it cannot be written.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        with _place(path) as place:
            if place.exists() and not stat.S_ISREG(place.stat().st_mode):
                _write_into(place, content)
            else:
                write_atomic(place, content, mode=mode)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def check_target(name: str, example: str) -> Path:
    """The path of a file that is to be written; what stands in its way is told before the work is done."""
    folder = os.path.dirname(os.path.realpath(name))
    if os.path.isdir(name):
        raise UsageError(f"{name} is a folder; name a file in it, like {name.rstrip('/')}/{example}")
    if not os.path.isdir(folder):
        raise UsageError(f"{name}: there is no folder {folder}")
    try:
        with _place(Path(name)) as place:
            if not os.access(place.parent, os.W_OK) and (place.is_file() or not place.exists()):
                raise UsageError(f"{name}: the folder {folder} cannot be written to")
    except OSError as error:
        raise UsageError(f"{name}: cannot be written: {error.strerror}") from None
    return Path(name)


@contextmanager
def _place(path: Path) -> Iterator[Path]:
    """Where a named file really lies: its name, which is no link, in a folder that is held open.

    Links are followed one by one, each checked as it was opened, so that nobody can exchange one in between.
    RefusedFileError at one that may be a trap: for root any that a user laid; for others one of another
    user's in a folder where everybody may lay one, which kernels refuse as well (fs.protected_symlinks).
    """
    left = [part for part in reversed(str(path).split("/")) if part]
    name = left.pop() if left else "."
    here = os.open("/" if path.is_absolute() else ".", _OPEN_FOLDER)
    followed = 0
    try:
        while True:
            try:
                found = os.open(name, _OPEN_ANY, dir_fd=here)
            except FileNotFoundError:
                if left:
                    raise
                break
            try:
                about = os.fstat(found)
                if stat.S_ISLNK(about.st_mode):
                    _check_link(name, about, os.fstat(here))
                    followed += 1
                    if followed > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    text = os.readlink("", dir_fd=found)
                    left += [part for part in reversed(text.split("/")) if part]
                    if text.startswith("/"):
                        top = os.open("/", _OPEN_FOLDER)
                        os.close(here)
                        here = top
                elif not left:
                    break
                else:
                    here, found = found, here
            finally:
                os.close(found)
            name = left.pop() if left else "."
        yield Path(f"/proc/self/fd/{here}", name)
    finally:
        os.close(here)


def _check_link(name: str, link: os.stat_result, folder: os.stat_result) -> None:
    if link.st_uid in (0, os.geteuid()):
        return
    everybodys = folder.st_mode & _EVERYBODYS == _EVERYBODYS and link.st_uid != folder.st_uid
    if os.geteuid() == 0 or everybodys:
        raise RefusedFileError(errno.EPERM, f"{name} is a link of user {link.st_uid}; it may be a trap")


def _write_into(place: Path, content: bytes) -> None:
    """Write to a pipe or device; without waiting for a reader, and not to another user's."""
    handle = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(handle)
        if stat.S_ISFIFO(about.st_mode) and about.st_uid not in (0, os.geteuid()):
            raise RefusedFileError(errno.EPERM, f"a pipe of user {about.st_uid}")
        os.set_blocking(handle, True)
        write_all(handle, content)
    finally:
        os.close(handle)
