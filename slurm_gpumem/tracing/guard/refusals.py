"""What people read where a trace could not run, or refused something that the script tried."""

from __future__ import annotations

import os
import re
from typing import Mapping

_REFUSED_BY_LANDLOCK = ("Permission denied", "PermissionError", "Operation not permitted")
_REFUSED_BY_COPY = ("Read-only file system", "Value too large for defined data type")
_NOT_MOUNTED = "Too many levels of symbolic links"
_INSTEAD = "give the memory with --gpu-mem, or the model with --model FILE (a summary of it)"


def not_safe(private: Mapping[str, str]) -> str:
    """Where nothing would keep the script from the user's files: it is not run."""
    return (
        "cannot trace safely here: this machine allows neither user namespaces nor Landlock, so nothing "
        f"would keep the script from changing your files ({private.get('why', '')}).\n"
        f"It was not run. Instead, {_INSTEAD}; or ask your admin for user namespaces or for traces in jobs "
        '(trace.where = "job" in gpumem.toml).'
    )


def refused_by_trace(private: Mapping[str, str], failure: str) -> str:
    """What to say of a failure that the trace itself may have caused; "" where it did not."""
    how = private.get("files", "")
    if how == "overlay" and _NOT_MOUNTED in failure:
        return (
            "An automounter's folder that nobody had looked at when the trace began is not mounted for it: "
            "list it once (ls), and trace again."
        )
    if _really(failure):
        return ""
    if how == "landlock" and any(words in failure for words in _REFUSED_BY_LANDLOCK):
        return (
            "The trace refused this, and the job would not: this machine allows no user namespaces, so a "
            "traced script may write to a scratch folder ($TMPDIR) only, and changes no modes.\n"
            f"Instead, {_INSTEAD}."
        )
    if how == "overlay" and any(words in failure for words in _REFUSED_BY_COPY):
        return (
            "The trace refused this, and the job may not: it makes private copies of your own folders, of "
            "the working directory and of folders that variables, the command or the script's text name; "
            "everything else is read-only.\n"
            f"Name the folder in the script or in a variable ($SCRATCH), or {_INSTEAD}."
        )
    return ""


def only_refused(private: Mapping[str, str]) -> str:
    """What the user reads of a trace without private copies."""
    if private.get("files") != "landlock":
        return ""
    return (
        "this machine allows no private copy of your files: Landlock and seccomp refused what would have "
        "changed something outside of a scratch folder"
    )


def _really(failure: str) -> bool:
    """Whether the file that an error names cannot be written to without a trace either."""
    found = re.search(r"'(/[^']*)'", failure)
    if not found:
        return False
    path = found.group(1)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return not os.access(path, os.W_OK)
