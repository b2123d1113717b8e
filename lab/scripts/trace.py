"""Trace every script of some lists without a GPU; one row each, written as it comes.

python -m lab.scripts.trace sixth --repositories DIR --out rows.jsonl [--only TEXT] [--seconds 120]
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from lab.command import exit_code
from lab.scripts.run import Prepared, each, parser
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.tracing.script.run import Limits, State, trace_command


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    options = parser("python -m lab.scripts.trace", str(__doc__))
    options.add_argument("--seconds", type=float, default=120.0, help="the limit of each trace")
    options.add_argument("--gpu", default="h200", help="the GPU that estimates are for")
    args = options.parse_args(argv)
    return exit_code(lambda: each(args, lambda script: traced(script, args.seconds, args.gpu), _line))


def traced(script: Prepared, seconds: float, gpu: str) -> Dict[str, Any]:
    """What a row says of the trace: the summary and the estimate made from it, or why there is none."""
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
        "summary": found.summary.decode(),
        "peak_mib": made.peak_mib,
        "request_mib": made.request_mib,
        "trace_seconds": round(found.seconds, 1),
        "trace_first_step": trains[0] if trains else None,
        "trace_facts": found.facts,
        "trace_notes": list(found.notes),
    }


def _line(row: Dict[str, Any]) -> str:
    if "summary" not in row:
        return "NOT TRACED: " + str(row["trace_error"]).replace("\n", " | ")[:200]
    return f"traced in {row['trace_seconds']:>5} s, {row['trace_facts'].get('phases')}"


if __name__ == "__main__":
    raise SystemExit(main())
