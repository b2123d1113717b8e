"""What the probe of a host needs to know of files, programs and users."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import re
import shlex
import subprocess
from typing import Dict, Iterator, List, Optional

Settings = Dict[str, str]
TIMEOUT_S = 10.0


def lineage(path: str) -> Iterator[str]:
    """The path and all folders above it."""
    yield path
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def is_hidden(path: str) -> bool:
    """Whether we may not even see if something is there: a folder above it is closed to us."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_program(path: str) -> bool:
    """Whether root could execute it."""
    return os.path.isfile(path) and bool(os.stat(path).st_mode & 0o111)


def parse_settings(text: str) -> Settings:
    """The plain assignments of a shell file: `name=value` at the beginning of a line."""
    found: Settings = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            for word in shlex.split(line, comments=True):
                name, equals, value = word.partition("=")
                if not equals or not re.fullmatch(r"[a-z_]+", name):
                    break
                found[name] = value
    return found


def read_text(path: str) -> Optional[str]:
    """At most 1 MiB of a file; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def digest(text: str) -> str:
    """A short name for a text, equal where the texts are."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run(
    argv: List[str], env: Optional[Dict[str, str]] = None, uid: Optional[int] = None
) -> Optional[subprocess.CompletedProcess[str]]:
    """As hooks run programs, with nothing of our environment; None when it does not end or start.

    As another user where that is asked for and we are root.
    """
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {key: value for key, value in (env or {}).items() if value}
    try:
        return subprocess.run(
            argv,
            env={"PATH": path, **kept},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            cwd="/",
            preexec_fn=(lambda: become(uid)) if uid is not None and os.geteuid() == 0 else None,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def become(uid: int) -> None:
    """Give up root for a user, with the user's groups."""
    try:
        entry = pwd.getpwuid(uid)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
    except KeyError:
        os.setgroups([])
        os.setgid(uid)
    os.setuid(uid)


def user_name(uid: int) -> str:
    """A user for people."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def group_name(gid: int) -> str:
    """A group for people."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
