"""What a row says of a run on the GPU.

A script runs until it ends or its time is over; its memory is the largest that NVML showed for its processes.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List

from lab.scripts.lists import Prepared

_POLL_S = 0.02


def measured(script: Prepared, seconds: float) -> Dict[str, Any]:
    """Its memory, and how it ended."""
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
        **gpu_facts(),
        **({"error": text[-300:]} if script.job and ended else {}),
        # A scaler that skips every step leaves no state of the optimizer.
        **({"optimizer_tensors": 0} if script.job and not largest.get("first_step") else {}),
    }


def _json(path: Path) -> Dict[str, Any]:
    try:
        found: Dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        return {}  # cut off in the middle of a line
    return found


@lru_cache(maxsize=1)
def _handle() -> Any:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml, nvml.nvmlDeviceGetHandleByIndex(0)


def process_peaks(pid: int) -> int:
    """Bytes that the tree of `pid` has on the GPU now, by NVML: those of its largest process."""
    nvml, gpu = _handle()
    mine = {pid, *_descendants(pid)}
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return max((int(one.usedGpuMemory or 0) for one in running if one.pid in mine), default=0)


def gpu_facts() -> Dict[str, Any]:
    """The GPU's name and memory, for the row."""
    nvml, gpu = _handle()
    name = nvml.nvmlDeviceGetName(gpu)
    return {
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "gpu_mib": int(nvml.nvmlDeviceGetMemoryInfo(gpu).total) >> 20,
    }


def _descendants(pid: int) -> List[int]:
    found: List[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            children = [int(word) for word in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except (OSError, ValueError):
            continue  # ended in between
        found += children
        waiting += children
    return found
