"""Traces that were made before: kept in the user's cache, and good while the files read are the same.

A trace is found by what was asked (code, arguments, shapes, training), by the Python that ran it, the
versions of its libraries and the folder; then the user's own files that it had read are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional

import slurm_gpumem
from slurm_gpumem.files import write_atomic
from slurm_gpumem.tracing.child.sandbox import Traced
from slurm_gpumem.tracing.child.spec import TraceRequest
from slurm_gpumem.xdg import cache_path

FORMAT = "gpumem-kept-trace/1"
MOST = 40
"""Traces that are kept; the oldest goes."""
_LIBRARIES = ("torch", "timm", "transformers", "torchvision")


def kept_trace(request: TraceRequest) -> Optional[Traced]:
    """The trace of this request, if one is kept and nothing that it read has changed."""
    try:
        content: Dict[str, Any] = json.loads(_path(request).read_text(encoding="utf-8"))
        if content["format"] != FORMAT or any(digest(path) != mark for path, mark in content["files"]):
            return None
        return Traced(content["summary"].encode(), tuple(content["notes"]), dict(content["facts"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # none is kept, or the file is damaged: trace again


def keep(request: TraceRequest, traced: Traced) -> None:
    """Keep a trace; where the cache cannot be written there is none."""
    content = {
        "format": FORMAT,
        "files": traced.facts.get("files", []),
        "summary": traced.summary.decode(errors="replace"),
        "notes": list(traced.notes),
        "facts": {key: value for key, value in traced.facts.items() if key != "files"},
    }
    path = _path(request)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, json.dumps(content), mode=0o600)
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-MOST]:
            old.unlink()
    except OSError:
        pass  # a cache only saves time


def digest(path: str) -> str:
    """What identifies a file's content; "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def files_read(paths: List[str]) -> List[List[str]]:
    """Each file with its content's mark."""
    return [[path, digest(path)] for path in sorted(set(paths))]


def _path(request: TraceRequest) -> Path:
    named = [request.to_json(), sys.executable, os.getcwd(), slurm_gpumem.__version__, *_versions()]
    name = hashlib.sha256(json.dumps(named).encode()).hexdigest()
    return Path(cache_path("traces", f"{name}.json"))


def _versions() -> List[str]:
    found = []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(name)
    return found
