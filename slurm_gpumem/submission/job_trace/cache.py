"""Traces that are kept: a script that is submitted again with the same code costs nothing.

A trace is known by the script, its arguments, its environment, the GPU and the tracer itself. It holds
while every file that the script's Python processes read, every file that the script or its arguments name and
every installed package is as it was.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

from slurm_gpumem.files import keep_newest, read_plain, write_atomic
from slurm_gpumem.submission.job_trace.batch_script import ScriptRun
from slurm_gpumem.tracing.script.run import TracedScript
from slurm_gpumem.units import MIB
from slurm_gpumem.xdg import cache_path

SCHEMA = "gpumem-traced/1"
_MOST_BYTES = 256 * MIB
_KEPT = 100
"""Traces of one user; the oldest go first."""
_CHANGES_BY_ITSELF = re.compile(
    r"_|SHLVL|OLDPWD|PWD|TERM.*|COLUMNS|LINES|LS_COLORS|DISPLAY|XAUTHORITY|WINDOWID|STY|TMUX.*|HIST.*|PS[0-9]"
    r"|SSH_.*|XDG_(SESSION|RUNTIME|VTNR|SEAT).*|DBUS_.*|GPG_.*|VSCODE_.*|LC_.*|LESS.*|MAIL|EDITOR|PAGER|COLORTERM"
)
"""Variables of a login that no training depends on."""
_WORD = re.compile(r"[^\s'\"=;&|()<>`]+")


def known(run: ScriptRun) -> Optional[TracedScript]:
    """The trace of this run, where nothing that it rests on has changed."""
    try:
        packed = read_plain(_path(run), most_bytes=_MOST_BYTES, owners=(os.geteuid(),))
        head, _, summary = gzip.decompress(packed).partition(b"\n")
        told = json.loads(head)
        if told.pop("schema") != SCHEMA or told.pop("rests_on") != _rests_on(told["files"], told["packages"]):
            return None
        lists = ("notes", "changed", "files", "packages")
        return TracedScript(**{**told, **{name: tuple(told[name]) for name in lists}}, summary=summary)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error, RecursionError):
        return None  # nothing is known, or it is of another version


def keep(run: ScriptRun, traced: TracedScript, started: float) -> Optional[str]:
    """Keep it for the next submission; why that failed, if it did. `started` is when the trace began."""
    files = tuple(sorted({*traced.files, *_named_files(run)}))
    traced = replace(traced, files=files)
    if any(_changed_since(path, started) for path in files):
        return None  # edited meanwhile: what the trace has seen is not known
    told = {key: value for key, value in asdict(traced).items() if key != "summary"}
    head = json.dumps({"schema": SCHEMA, "rests_on": _rests_on(files, traced.packages), **told})
    path = _path(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, gzip.compress(head.encode() + b"\n" + traced.summary, 1), mode=0o600)
        keep_newest(path.parent, _KEPT)
    except OSError as error:
        return f"the trace is not kept for the next time: {error.filename}: {error.strerror}"
    return None


def _path(run: ScriptRun) -> Path:
    environment = sorted(
        (key, value) for key, value in run.environment.items() if not _CHANGES_BY_ITSELF.fullmatch(key)
    )
    parts = [SCHEMA, _tracer(), run.args, environment, run.folder, run.gpu]
    digest = hashlib.sha256(run.data + b"\0" + json.dumps(parts).encode())
    return Path(cache_path("traces", digest.hexdigest()[:32]))


def _tracer() -> List[str]:
    """Which tracer this is: its files, so that another one traces again."""
    package = Path(__file__).parents[2]
    files = sorted([*package.glob("tracing/**/*.py"), *package.glob("injected/*.py")])
    return [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]


def _named_files(run: ScriptRun) -> List[str]:
    """Files that the script's text or its arguments name: it may source them or hand them on."""
    words = {*_WORD.findall(run.data.decode("utf-8", "replace")), *run.args}
    paths = (os.path.join(run.folder, word) for word in words if len(word) < 1000 and "\0" not in word)
    return [os.path.abspath(path) for path in paths if os.path.isfile(path)]


def _rests_on(files: Iterable[str], packages: Iterable[str]) -> str:
    """One word for how files and installed packages are now."""
    state: Dict[str, Any] = {path: _state_of(path) for path in files}
    for folder in packages:
        try:
            names = sorted(
                name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-link", ".pth"))
            )
            state[folder] = [os.stat(folder).st_mtime_ns, names]
        except OSError:
            state[folder] = None
    return hashlib.sha256(json.dumps(sorted(state.items())).encode()).hexdigest()


def _state_of(path: str) -> Optional[List[int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None  # it was looked for and is not there: its appearance is a change
    return [found.st_size, found.st_mtime_ns]


def _changed_since(path: str, started: float) -> bool:
    try:
        return os.stat(path).st_mtime >= started
    except OSError:
        return False
