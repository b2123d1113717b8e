"""What tracing and measuring the scripts of lists have in common: copies, synthetic data, rows.

Each script works in a copy of its repository. Rows are written as they come; the same command again goes on
with the scripts that have no row yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Callable, Dict, List, NamedTuple, Set

from lab.scripts.recipes import RECIPES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.toml_file import load_toml

_HERE = Path(__file__).resolve().parent
LISTS = {path.stem: path for path in sorted((_HERE / "lists").glob("*.toml"))}


class Prepared(NamedTuple):
    """A script that is ready to start."""

    command: List[str]
    folder: Path
    environment: Dict[str, str]


class Script(NamedTuple):
    """One entry of the list."""

    name: str
    repository: str
    commit: str
    folder: str
    command: str
    data: Dict[str, str]
    environment: Dict[str, str]
    prepare: str
    stand_ins: List[str]


def load_scripts(path: Path) -> List[Script]:
    """The scripts of a list."""
    rows = load_toml(path)["script"]
    optional: Dict[str, Any] = {"data": {}, "environment": {}, "prepare": "", "stand_ins": []}
    return [Script(*({**optional, **row}[name] for name in Script._fields)) for row in rows]


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The options that tracing and measuring share."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    made.add_argument("lists", nargs="+", metavar="LIST", help=f"of {', '.join(LISTS)}, or a file like them")
    made.add_argument("--repositories", type=Path, required=True, help="clones as OWNER+NAME")
    made.add_argument("--out", type=Path, required=True, help="rows are appended here")
    made.add_argument("--only", default="", help="scripts whose name contains this")
    made.add_argument("--python", default=sys.executable, help="the environment's python")
    made.add_argument("--jobs", type=int, default=4, help="scripts at a time")
    made.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no script after these")
    return made


def each(
    args: argparse.Namespace,
    work: Callable[[Prepared], Dict[str, Any]],
    line: Callable[[Dict[str, Any]], str],
) -> int:
    """A row by `work` for every script that has none yet, and a line on the terminal by `line`."""
    done = _names(args.out)
    paths = [LISTS.get(name, Path(name)) for name in args.lists]
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} is no file and no list; lists: {', '.join(LISTS)}")
    listed = [one for path in paths for one in load_scripts(path)]
    lock = Lock()
    latest = time.monotonic() + args.limit_seconds

    def one_script(script: Script) -> None:
        if time.monotonic() > latest:
            print(f"{script.name:<28} not started: the time is over", flush=True)
            return
        row = _row(script, args, work)
        with lock, open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = "NOT PREPARED: " + row["not_prepared"][:200] if "not_prepared" in row else line(row)
        print(f"{script.name:<28} {said}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one_script, [s for s in listed if args.only in s.name and s.name not in done]))
    return 0


def _names(rows: Path) -> Set[str]:
    """Scripts that have a row; the last line may be one that was cut off."""
    found = set()
    for line in rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []:
        try:
            found.add(str(json.loads(line)["name"]))
        except ValueError:
            print(f"{rows}: a line that was cut off is not counted", file=sys.stderr)
    return found


def _row(
    script: Script, args: argparse.Namespace, work: Callable[[Prepared], Dict[str, Any]]
) -> Dict[str, Any]:
    row = {"name": script.name, "repository": script.repository, "commit": script.commit}
    with tempfile.TemporaryDirectory(prefix="gpumem-script-") as scratch:
        source = args.repositories / script.repository.replace("/", "+")
        copy = Path(scratch, "work")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        folder = copy / script.folder
        env = _environment(script, folder, args.python)
        try:
            for where, recipe in script.data.items():
                RECIPES[recipe]((folder / where).resolve())
            if script.prepare:
                subprocess.run(_words(script.prepare, args.python), cwd=folder, env=env, check=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            return {**row, "not_prepared": f"{type(error).__name__}: {error}"}  # the others still run
        return {**row, **work(Prepared(_words(script.command, args.python), folder, env))}


def _words(command: str, python: str) -> List[str]:
    return [python if word == "python" else word for word in shlex.split(command)]


def _environment(script: Script, folder: Path, python: str) -> Dict[str, str]:
    own = {name: str((folder / value).resolve()) for name, value in script.environment.items()}
    path = os.pathsep.join([str(_HERE / "injected"), *filter(None, [own.pop("PYTHONPATH", "")])])
    return {
        **os.environ,
        **own,
        "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")])),
        "PATH": os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", "")]),
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "Agg",
        "GPUMEM_SCRIPTS_STAND_INS": " ".join(script.stand_ins),
        "GPUMEM_TRACE_DEBUG": "1",
    }
