"""Files of others that a script may write to, in private copies: overwritten and appended to as without them.

The kernel copies no file into an overlay's upper layer whose owner or group the user namespace does not
have (EOVERFLOW, "Value too large for defined data type"). Small ones were copied beforehand
(`guard.private_copy`). Of others, a colleague's checkpoint in a group's folder, the user's own copy takes the
place when they are opened to be written to: an empty one where nothing of it is kept. What is opened by code
in other languages is not seen here.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR
_SUFFIX = ".gpumem-copy"


def install() -> None:
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
