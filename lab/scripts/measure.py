"""Run every script of some lists on the GPU; one row each, written as it comes.

    python -m lab.scripts.measure sixth --repositories DIR --out rows.jsonl [--only TEXT] [--seconds 40]

A script runs until it ends or `--seconds` are over; its memory is the largest that NVML showed for its
processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from lab.command import exit_code
from lab.scripts.gpu_memory import process_peaks
from lab.scripts.run import Prepared, each, parser

_POLL_S = 0.02


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    options = parser("python -m lab.scripts.measure", str(__doc__))
    options.add_argument("--seconds", type=float, default=40.0, help="of each run")
    args = options.parse_args(argv)
    args.limit_seconds -= args.seconds
    return exit_code(lambda: each(args, lambda script: measured(script, args.seconds), _line))


def measured(script: Prepared, seconds: float) -> Dict[str, Any]:
    """What a row says of the run: its memory, and how it ended."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        report = Path(scratch, "measured")
        started = time.monotonic()
        child = subprocess.Popen(
            script.command,
            cwd=script.folder,
            env={
                **script.environment,
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
    tail = row["run_tail"][-150:].replace("\n", " | ")
    return f"measured {row['process_bytes'] >> 20} MiB, code {row['run_code']} {tail}".rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
