"""Trace or measure every script of some lists, or make the texts of their jobs; one row each, as it comes.

    python -m lab.scripts.run trace LIST ... --repositories DIR --out rows.jsonl [--only TEXT]
    python -m lab.scripts.run measure LIST ... --repositories DIR --out rows.jsonl
    python -m lab.scripts.run texts LIST ... --out rows.jsonl

Each script works in a copy of its repository. The same command again goes on with the scripts that have no
row of its kind yet.
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
from typing import Any, Callable, Dict, List, Optional, Set

from lab.command import exit_code
from lab.networks.jobs import job_of
from lab.scripts.lists import HERE, LISTS, Prepared, Script, list_paths, load_list

Row = Dict[str, Any]
Work = Callable[[Prepared, argparse.Namespace], Row]
KINDS = {"trace": "traced", "measure": "measured", "texts": "texts"}
"""What a row of each command is called; a script that is traced once more has rows of the kind "again"."""
SECONDS = {"trace": 120.0, "measure": 40.0, "texts": 150.0}


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    args = parser().parse_args(argv)
    return exit_code(lambda: each(args, _work(args.what)))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m lab.scripts.run", description=__doc__)
    made.add_argument("what", choices=KINDS)
    made.add_argument("lists", nargs="+", metavar="LIST", help=f"of {', '.join(LISTS)}, or a file like them")
    made.add_argument("--repositories", type=Path, default=Path("."), help="clones as OWNER+NAME")
    made.add_argument("--out", type=Path, required=True, help="rows are appended here")
    made.add_argument("--only", default="", help="scripts whose name contains this")
    made.add_argument("--again", action="store_true", help="rows of scripts that were traced before")
    made.add_argument("--python", default=sys.executable, help="the environment's python")
    made.add_argument("--jobs", type=int, default=4, help="scripts at a time")
    made.add_argument("--seconds", type=float, help=f"the limit of each: {SECONDS}")
    made.add_argument("--gpu", default="h200", help="the GPU that estimates of traces are for")
    made.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no script after these")
    return made


def _work(what: str) -> Work:
    if what == "trace":
        from lab.scripts.trace import traced

        return lambda script, args: traced(script, args.seconds, args.gpu)
    if what == "measure":
        from lab.scripts.measure import measured

        return lambda script, args: measured(script, args.seconds)
    from lab.scripts.trace import texts

    return lambda script, args: texts(script, args.seconds)


def each(args: argparse.Namespace, work: Work) -> int:
    """A row by `work` for every script that has none yet, and a line on the terminal."""
    args.seconds = args.seconds or SECONDS[args.what]
    kind = "again" if args.again else KINDS[args.what]
    done = _names(args.out, kind)
    listed = [one for path in list_paths(args.lists) for one in load_list(path)]
    if args.what == "texts":
        listed = [one for one in listed if one.job]
    lock = Lock()
    latest = time.monotonic() + args.limit_seconds

    def one_script(script: Script) -> None:
        if time.monotonic() > latest:
            print(f"{script.name:<28} not started: the time is over", flush=True)
            return
        row = {"kind": kind, **_row(script, args, work)}
        with lock, open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{script.name:<28} {_said(row)}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one_script, [s for s in listed if args.only in s.name and s.name not in done]))
    return 0


def _said(row: Row) -> str:
    if "not_prepared" in row:
        return "NOT PREPARED: " + str(row["not_prepared"])[:200]
    if "trace_error" in row:
        return "NOT TRACED: " + str(row["trace_error"]).replace("\n", " | ")[:200]
    if "run_code" in row:
        tail = row["run_tail"][-150:].replace("\n", " | ")
        return f"measured {row['process_bytes'] >> 20} MiB, code {row['run_code']} {tail}".rstrip()
    if "trace" in row:
        return f"traced in {row['trace_seconds']:>5} s, {row['trace_facts'].get('phases')}"
    failed = [name for name in row if name.endswith("error")]
    return f"texts, {', '.join(failed) or 'all'}" + (" failed" if failed else "")


def _names(rows: Path, kind: str) -> Set[str]:
    """Scripts that have a row of this kind; the last line may be one that was cut off."""
    found = set()
    for line in rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            print(f"{rows}: a line that was cut off is not counted", file=sys.stderr)
            continue
        if row["kind"] == kind:
            found.add(str(row["name"]))
    return found


def _row(script: Script, args: argparse.Namespace, work: Work) -> Row:
    row = {"name": script.name, "repository": script.repository, "commit": script.commit}
    with tempfile.TemporaryDirectory(prefix="gpumem-script-") as scratch:
        copy = Path(scratch, "work")
        if script.job:
            copy.mkdir()
            job = job_of(script.job).as_row()
            return {**row, **job, **work(_prepared_job(script, copy, args), args)}
        source = args.repositories / script.repository.replace("/", "+")
        folder = copy / script.folder
        try:
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
            env = _environment(script, folder, args.python)
            for where, program in script.data.items():
                make_data((folder / where).resolve(), program, args.python)
            if script.prepare:
                subprocess.run(_words(script.prepare, args.python), cwd=folder, env=env, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return {**row, "not_prepared": f"{type(error).__name__}: {error}"}  # the others still run
        return {**row, **work(Prepared(_words(script.command, args.python), folder, env, {}), args)}


def make_data(path: Path, program: str, python: str) -> None:
    """Run a recipe; CalledProcessError where it fails, its message on stderr."""
    subprocess.run([python, str(HERE / "recipe_tools.py"), str(path)], input=program, text=True, check=True)


def _prepared_job(script: Script, folder: Path, args: argparse.Namespace) -> Prepared:
    command = [args.python, "-m", "lab.networks.train", json.dumps(script.job)]
    env = _environment(script, folder, args.python)
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(HERE.parent.parent)])
    env["GPUMEM_REPOSITORIES"] = str(args.repositories.resolve())
    return Prepared(command, folder, env, script.job)


def _words(command: str, python: str) -> List[str]:
    return [python if word == "python" else word for word in shlex.split(command)]


def _environment(script: Script, folder: Path, python: str) -> Dict[str, str]:
    own = {name: str((folder / value).resolve()) for name, value in script.environment.items()}
    path = os.pathsep.join([str(HERE / "injected"), *filter(None, [own.pop("PYTHONPATH", "")])])
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


if __name__ == "__main__":
    raise SystemExit(main())
