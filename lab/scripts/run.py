"""Trace and run every script of the list; one row each, written as it comes.

    python -m lab.scripts.run --repositories DIR --out rows.jsonl [--only TEXT] [--no-gpu]
        [--list third.toml third-blind.toml] [--limit-seconds 540]

Each script works in a copy of its repository. On a GPU it runs until it ends or `--seconds` are over; its
memory is the largest that NVML showed for its processes. The same command again goes on with the scripts
that have no row yet.
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
from typing import Any, Dict, List, NamedTuple, Optional, Set

from lab.scripts.recipes import RECIPES
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.toml_file import load_toml
from slurm_gpumem.tracing.script.run import Limits, State, trace_command

_HERE = Path(__file__).resolve().parent
_LIST = _HERE / "scripts.toml"
_POLL_S = 0.02


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


def load_scripts(path: Path = _LIST) -> List[Script]:
    """The list."""
    return [
        Script(
            row["name"],
            row["repository"],
            row["commit"],
            row["folder"],
            row["command"],
            row.get("data", {}),
            row.get("environment", {}),
            row.get("prepare", ""),
            row.get("stand_ins", []),
        )
        for row in load_toml(path)["script"]
    ]


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.scripts.run", description=__doc__)
    parser.add_argument("--repositories", type=Path, required=True, help="clones as OWNER+NAME")
    parser.add_argument("--out", type=Path, required=True, help="rows are appended here")
    parser.add_argument("--list", type=Path, nargs="+", default=[_LIST], help="files like scripts.toml")
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--python", default=sys.executable, help="the environment's python")
    parser.add_argument("--no-gpu", action="store_true", help="trace only")
    parser.add_argument("--no-trace", action="store_true", help="run only")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run on the GPU")
    parser.add_argument("--gpu", default="h200", help="the GPU that estimates are for")
    parser.add_argument("--trace-seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=4, help="scripts at a time")
    parser.add_argument(
        "--limit-seconds", type=float, default=float("inf"), help="start no script after these"
    )
    args = parser.parse_args(argv)
    done = _names(args.out)
    listed = [one for path in args.list for one in load_scripts(path)]
    scripts = [one for one in listed if args.only in one.name and one.name not in done]
    lock = Lock()
    latest = time.monotonic() + args.limit_seconds - (0 if args.no_gpu else args.seconds)

    def work(script: Script) -> None:
        if time.monotonic() > latest:
            print(f"{script.name:<28} not started: the time is over", flush=True)
            return
        row = _row(script, args)
        with lock, open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(work, scripts))
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


def _row(script: Script, args: argparse.Namespace) -> Dict[str, Any]:
    row: Dict[str, Any] = {"name": script.name, "repository": script.repository, "commit": script.commit}
    with tempfile.TemporaryDirectory(prefix="gpumem-script-") as scratch:
        source = args.repositories / script.repository.replace("/", "+")
        work = Path(scratch, "work")
        shutil.copytree(source, work, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        folder = work / script.folder
        env = _environment(script, folder, args.python)
        command = _words(script.command, args.python)
        try:
            for where, recipe in script.data.items():
                RECIPES[recipe]((folder / where).resolve())
            if script.prepare:
                subprocess.run(_words(script.prepare, args.python), cwd=folder, env=env, check=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            return {**row, "not_prepared": f"{type(error).__name__}: {error}"}  # the others still run
        if not args.no_trace:
            row.update(_traced(command, folder, env, args.trace_seconds, args.gpu))
        if not args.no_gpu:
            row.update(_measured(command, folder, env, args.seconds, Path(scratch, "measured")))
    return row


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


def _traced(
    command: List[str], folder: Path, env: Dict[str, str], seconds: float, gpu: str
) -> Dict[str, Any]:
    started = time.monotonic()
    trains: List[float] = []

    def watch(state: State, now: float) -> None:
        if state.training and not trains:
            trains.append(round(now, 1))

    try:
        found = trace_command(
            command, Limits(seconds=seconds), environment=env, folder=str(folder), progress=watch
        )
        made = estimate(found.summary.decode(), gpu=gpu)
    except GpumemError as error:
        return {"trace_error": str(error), "trace_seconds": round(time.monotonic() - started, 1)}
    return {
        "summary": found.summary.decode(),
        "peak_mib": made.peak_mib,
        "request_mib": made.request_mib,
        "trace_seconds": round(found.seconds, 1),
        "trace_first_step": trains[0] if trains else None,
        "trace_facts": found.facts,
        "trace_notes": list(found.notes),
    }


def _measured(
    command: List[str], folder: Path, env: Dict[str, str], seconds: float, report: Path
) -> Dict[str, Any]:
    from lab.scripts.gpu_memory import process_peaks

    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={
                **env,
                "GPUMEM_SCRIPTS_MEASURE": str(report),
                "GPUMEM_SCRIPTS_STARTED": str(time.time()),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        peak = 0
        while child.poll() is None and time.monotonic() - started < seconds:
            peak = max(peak, process_peaks(child.pid))
            time.sleep(_POLL_S)
        ended = child.poll()
        if ended is None:
            os.killpg(child.pid, 15)
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 3000))
        text = output.read().decode(errors="replace")
    rows = [_json(path) for path in report.parent.glob(report.name + ".*")]
    largest = max(rows, key=lambda row: int(row.get("reserved", 0)), default={})
    return {
        "process_bytes": peak,
        "reserved_bytes": largest.get("reserved", 0),
        "allocated_bytes": largest.get("allocated", 0),
        "start_seconds": largest.get("first_step"),
        "run_seconds": round(time.monotonic() - started, 2),
        "run_code": ended,
        "run_tail": text[-600:] if ended not in (0, None) else "",
    }


def _json(path: Path) -> Dict[str, Any]:
    try:
        found: Dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        return {}  # cut off in the middle of a line
    return found


def _line(row: Dict[str, Any]) -> str:
    words = [f"{row['name']:<28}"]
    if "not_prepared" in row:
        words.append("NOT PREPARED: " + row["not_prepared"][:200])
    if "summary" in row:
        words.append(f"traced in {row['trace_seconds']:>5} s, {row['trace_facts'].get('phases')}")
    elif "trace_error" in row:
        words.append("NOT TRACED: " + row["trace_error"].replace("\n", " | ")[:200])
    if "process_bytes" in row:
        words.append(f"measured {row['process_bytes'] >> 20} MiB, code {row['run_code']}")
        words += [row["run_tail"][-150:].replace("\n", " | ")] if row["run_tail"] else []
    return " ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
