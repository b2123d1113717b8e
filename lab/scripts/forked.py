"""Run the scripts of a list on the GPU in forked children; one row each, written as it comes.

    python -m lab.scripts.forked --out rows.jsonl --list finetune-more.toml
        [--limit-seconds 300] [--only TEXT]

Only for the project's own scripts (own/): they run in a process that has imported their packages, one after
the other. `score` puts these rows and those of the traces together.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from lab.forked import imported, measured
from lab.scripts.run import load_scripts

_HERE = Path(__file__).resolve().parent
_PACKAGES = ("torch", "transformers", "transformers.generation", "transformers.models.llama.modeling_llama")


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.scripts.forked", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="rows are appended here")
    parser.add_argument("--list", type=Path, required=True, help="a file like finetune.toml")
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="start no script after these")
    parser.add_argument("--no-import", action="store_true", help="each script imports for itself")
    args = parser.parse_args(argv)
    started = time.monotonic()
    if not args.no_import:
        imported(_PACKAGES)
        print(f"imported in {time.monotonic() - started:.1f} s", flush=True)
        probe = measured(_touch, 60.0)
        if probe["run_code"]:
            print("a child of this process has no CUDA; each imports for itself: " + probe["run_tail"][-200:])
            sys.stdout.flush()
            words = [*(sys.argv[1:] if argv is None else argv), "--no-import"]
            os.execv(sys.executable, [sys.executable, "-m", "lab.scripts.forked", *words])
    done = _names(args.out)
    for script in load_scripts(args.list):
        left = args.limit_seconds - (time.monotonic() - started)
        if args.only not in script.name or script.name in done:
            continue
        if left < min(15.0, args.seconds):
            print(f"{script.name}: not started, the time is over", flush=True)
            continue
        work = _program(_HERE / "own" / script.repository, shlex.split(script.command)[1:])
        row: Dict[str, Any] = {"name": script.name, **measured(work, min(args.seconds, left))}
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        tail = row["run_tail"][-300:].replace("\n", " | ")
        print(
            f"{script.name:<28} {row['process_bytes'] >> 20} MiB, reserved {row['reserved_bytes'] >> 20}, "
            f"{row['run_seconds']} s, code {row['run_code']} {tail}",
            flush=True,
        )
    return 0


def _program(folder: Path, words: List[str]) -> Callable[[], None]:
    """The command as a function: the script with its arguments, in its folder."""

    def run() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")

    return run


def _touch() -> None:
    import torch

    torch.zeros(1, device="cuda")


def _names(rows: Path) -> List[str]:
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return [str(json.loads(line)["name"]) for line in lines]


if __name__ == "__main__":
    raise SystemExit(main())
