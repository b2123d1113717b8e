"""What a row says of a trace, and of a job's summary texts: neither needs a GPU."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any, Dict, List

from lab.scripts.lists import Prepared
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.tracing.script.messages import State
from slurm_gpumem.tracing.script.run import Limits, trace_command


def traced(script: Prepared, seconds: float, gpu: str) -> Dict[str, Any]:
    """The trace and the estimate made from it, or why there is none."""
    started = time.monotonic()
    trains: List[float] = []

    def watch(state: State, now: float) -> None:
        if state.training and not trains:
            trains.append(round(now, 1))

    try:
        found = trace_command(
            script.command,
            Limits(seconds=seconds),
            environment=script.environment,
            folder=str(script.folder),
            progress=watch,
        )
        made = estimate(found.summary.decode(), gpu=gpu)
    except GpumemError as error:
        return {"trace_error": str(error), "trace_seconds": round(time.monotonic() - started, 1)}
    return {
        "trace": found.summary.decode(),
        "peak_mib": made.peak_mib,
        "request_mib": made.request_mib,
        "trace_seconds": round(found.seconds, 1),
        "trace_first_step": trains[0] if trains else None,
        "trace_facts": found.facts,
        "trace_notes": list(found.notes),
    }


def texts(script: Prepared, seconds: float) -> Dict[str, Any]:
    """All texts of the job's network (lab/networks/texts.py), or why there are none."""
    python = script.command[0]
    command = [python, "-m", "lab.networks.texts", json.dumps(script.job)]
    try:
        done = subprocess.run(
            command,
            cwd=script.folder,
            env=script.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"texts_error": f"not done after {seconds:.0f} s"}
    if done.returncode:
        return {"texts_error": done.stderr[-600:]}
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
