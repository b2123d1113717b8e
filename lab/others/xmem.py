"""xMem (Shi et al., 2025) on one measured job: its own code, from a checkout that the caller names.

xMem reads a profile of a training on the CPU and prints the peak of a simulated allocator. The profile is
made as its own profiler makes it; `main.py FILE -b BATCH -g GB` of the checkout answers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Mapping

from torch.profiler import ProfilerActivity, profile, schedule

from lab.others.training import built, training_of
from slurm_gpumem.errors import UsageError

GPU_GB = 140
_UNITS = {"g": 1 << 30, "m": 1 << 20, "k": 1 << 10, "b": 1}
_PEAK = re.compile(r"Estimated Peak GPU Memory:\s*([0-9.]+)\s*([GMKgmk]?)[Bb]")


def xmem(row: Mapping[str, Any], checkout: Path) -> Dict[str, Any]:
    """Profile two steps after two that warm up, and ask the checkout."""
    # It takes every block of a weight's size in the optimizer's step for a state, so no lists of temporaries.
    training = training_of(row, built(row), foreach=False)
    steps = schedule(wait=1, warmup=1, active=2, repeat=1)
    with tempfile.TemporaryDirectory(prefix="gpumem-xmem-") as folder:
        path = Path(folder, "profile.json")
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=steps,
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            with_modules=True,
        ) as profiler:
            for _ in range(4):
                training.step()
                profiler.step()
        command = [sys.executable, "main.py", str(path), "-b", str(row["batch"]), "-g", str(GPU_GB)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    found = _PEAK.search(done.stdout)
    if done.returncode or found is None:
        raise UsageError(f"xMem gave no peak: {(done.stderr or done.stdout)[-200:]}")
    return {"reserved_bytes": round(float(found[1]) * _UNITS[found[2].lower() or "b"])}
