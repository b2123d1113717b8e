"""What a row says of a trace, which needs no GPU."""

from __future__ import annotations

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
