"""Files that a script writes: of rounds that were left out, and of others in private copies.

A model labels picture after picture, one file each, and a later stage trains with all of them; or the weights
of the last epochs are averaged. Where a file of a round that was left out is opened, it becomes another name
of the last one of its kind that was written since: in the same folder, of the same name but for its numbers.

The kernel copies no file into an overlay's upper layer whose owner or group the user namespace does not
have (EOVERFLOW, "Value too large for defined data type"). Small ones were copied beforehand
(`guard.private_copy`). Of others, a colleague's checkpoint in a group's folder, the user's own copy takes the
place when they are opened to be written to: an empty one where nothing of it is kept. What is opened by code
in other languages is not seen here.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_WRITES = os.O_WRONLY | os.O_RDWR
_SUFFIX = ".gpumem-copy"


class _Written(NamedTuple):
    number: int
    path: str


class Unwritten:
    """Files that were written, of some of which there would have been more."""

    def __init__(self, recorder: ScriptRecorder) -> None:
        self._recorder = recorder
        self._last: Dict[Tuple[str, str], _Written] = {}
        """By their folder, and name without numbers."""
        self._since: Optional[int] = None
        """How many had been written at the begin of the first loop whose rounds were not all run."""
        self.count = 0
        """Files that were written."""

    def install(self) -> None:
        """Hear of every file that is opened, just before it is."""
        sys.addaudithook(self._hear)

    def wrote(self, path: str) -> None:
        """A file is about to be written."""
        path = os.path.abspath(path)
        self._last[_kind(path)] = _Written(self.count, path)
        self.count += 1

    def left_out(self, since: int) -> None:
        """Rounds are left out of a loop at whose begin this many files had been written."""
        # What a later loop is about may have been collected in this one.
        self._since = since if self._since is None else min(since, self._since)

    def _hear(self, event: str, args: Any) -> None:
        if event != "open" or type(args[0]) is not str or self._recorder.off:
            return
        if args[2] & _WRITES:
            if not self._recorder.loading:
                self.wrote(args[0])
        elif self._since is not None:
            path = os.path.abspath(args[0])
            like = self._last.get(_kind(path))
            if like is None or like.number < self._since or like.path == path:
                return
            if os.path.exists(like.path) and not os.path.lexists(path):
                self._recorder.assume("a file of a round that was left out is taken to be like another's")
                with suppress(OSError):  # then the script is told that there is no such file
                    os.link(like.path, path)


def _kind(path: str) -> Tuple[str, str]:
    folder, name = os.path.split(path)
    return folder, re.sub(r"\d+", "0", name)


def copy_foreign_files() -> None:
    """Hear of every file that is opened, just before it is; only where all that can be written is a copy."""
    if _in_private_copies():
        sys.addaudithook(_hear)


def about_to_write(path: str, emptied: bool = True) -> None:
    """A file is about to be written; `emptied`: from its begin."""
    if not _in_private_copies():
        return
    path = os.path.realpath(path)
    own = path + _SUFFIX
    try:
        about = os.stat(path)
        foreign = about.st_uid != os.geteuid() or about.st_gid != os.getegid()
        if not (foreign and stat.S_ISREG(about.st_mode) and os.access(path, os.W_OK)):
            return
        if emptied:
            with open(own, "xb"):
                pass
        else:
            shutil.copyfile(path, own)
        os.chmod(own, stat.S_IMODE(about.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
        os.replace(own, path)
    except OSError:
        # Not there, no space, or not to be replaced: the script is told so when it opens the file itself.
        with suppress(OSError):
            os.remove(own)


def _hear(event: str, args: Any) -> None:
    if event == "open" and type(args[0]) is str and args[2] & _WRITES and not args[0].endswith(_SUFFIX):
        about_to_write(args[0], emptied=bool(args[2] & os.O_TRUNC))


@lru_cache(maxsize=1)
def _in_private_copies() -> bool:
    """Whether this is the guard's user namespace, which has one user: with it come the private copies."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        user = str(os.geteuid())
        return file.read().split() == [user, user, "1"]
