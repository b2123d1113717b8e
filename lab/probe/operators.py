"""Record what single operators allocate on a GPU, forward and backward, block by block.

    python -m lab.probe.operators --out DIR [--timm | --powers]

One JSON line a case: the case itself, `forward` and `backward` as lists of bytes in the order of events,
positive for an allocation and negative for its release; or `error`. The first line tells the machine.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from lab.children import Children
from lab.command import exit_code
from lab.device import describe_device
from lab.ground_truth import open_text
from lab.probe.cases import Case, all_cases, case_of, forward_of, timm_cases
from lab.probe.powers import power_cases
from slurm_gpumem.errors import UsageError

MAX_EVENTS = 1_000_000
MOST_RESERVED = 8 << 30
_SIGN = {"alloc": 1, "free_completed": -1}

Span = Tuple[Case, Dict[str, Any], List[int]]
"""A case, its error if any, and when its forward and backward passes began and ended."""


def probe(cases: Sequence[Case], limit_seconds: float) -> Dict[str, Any]:
    """Run the cases one after the other in this process."""
    torch.set_num_threads(1)
    device = torch.device("cuda", 0)
    started = time.monotonic()
    _warm_up(device)
    torch.cuda.memory._record_memory_history(max_entries=MAX_EVENTS, context=None)
    spans: List[Span] = []
    for case in cases:
        if time.monotonic() - started > limit_seconds:
            break
        spans.append(_run(case, device))
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events = [(e.get("time_us", 0), _SIGN[e["action"]] * e["size"]) for e in trace if e["action"] in _SIGN]
    times = [at for at, _ in events]
    return {"rows": [_row(span, times, events) for span in spans]}


def _warm_up(device: torch.device) -> None:
    """The workspaces that stay, of both threads, are taken before anything is recorded."""
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(64, 64, device=device, dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(a, a, a[0]).sum().backward()
    torch.cuda.synchronize()


def _run(case: Case, device: torch.device) -> Span:
    result: Dict[str, Any] = {}
    marks: List[int] = []
    out = leaves = forward = gradient = None
    try:
        forward, leaves = forward_of(case, device)
        marks.append(_now())
        out = forward()
        marks.append(_now())
        gradient = torch.ones_like(out)
        marks.append(_now())
        out.backward(gradient)
        marks.append(_now())
    except Exception as error:  # noqa: BLE001 - a case that the GPU refuses is a result
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    del out, leaves, forward, gradient
    return case, result, marks


def _now() -> int:
    """Microseconds; events carry the same clock. A moment's rest keeps two marks apart."""
    torch.cuda.synchronize()
    time.sleep(20e-6)
    now = time.time_ns() // 1000
    time.sleep(20e-6)
    return now


def _row(span: Span, times: List[int], events: List[Tuple[int, int]]) -> Dict[str, Any]:
    case, result, marks = span
    begun, done, back, end = [*marks, 0, 0, 0, 0][:4]

    def between(first: int, last: int) -> List[int]:
        return [size for _, size in events[bisect_left(times, first) : bisect_left(times, last)]]

    return {
        **case,
        **result,
        "forward": between(begun, done),
        "backward": between(back, end),
    }


def main(argv: Optional[List[str]] = None) -> int:
    """Probe every case, in several processes."""
    parser = argparse.ArgumentParser(prog="python -m lab.probe.operators", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=5)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--timm", action="store_true", help="the convolutions of timm's models instead")
    which.add_argument("--powers", action="store_true", help="all convolutions at powers of two instead")
    parser.add_argument("--skip", type=Path, metavar="FILE", help="leave out what this file has already")
    options = parser.parse_args(argv)
    asked = ((options.timm, timm_cases), (options.powers, power_cases))
    make = next((cases for wanted, cases in asked if wanted), all_cases)

    def left() -> List[Case]:
        done = {_mark(case_of(row)) for row in _rows(options.skip)} if options.skip else set()
        return [case for case in make(options.seed) if _mark(case) not in done]

    return exit_code(lambda: run(options.out, options.limit_seconds, options.jobs, left()))


def _rows(path: Path) -> List[Dict[str, Any]]:
    """Results that a file has."""
    try:
        with open_text(path) as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a file of measured operators: {error}") from None


def _mark(case: Case) -> str:
    return json.dumps(case, sort_keys=True)


def run(out: Path, limit_seconds: float, jobs: int, cases: Sequence[Case]) -> int:
    """Split the cases over processes and write what they saw."""
    about = describe_device("cuda", {"torch": str(torch.__version__)})
    out.mkdir(parents=True, exist_ok=True)
    gc.collect()
    gc.freeze()
    children, written = Children(), 0
    for number in range(jobs):
        part = cases[number::jobs]
        children.start(number, lambda part=part: probe(part, limit_seconds), limit_seconds + 60)  # type: ignore[misc]
    with gzip.open(out / "operators.jsonl.gz", "wt", compresslevel=9) as file:
        file.write(json.dumps({"about": about}) + "\n")
        while len(children):
            for ended in children.wait(1):
                if ended.answer is None:
                    print(f"probe {ended.tag}: {ended.error}", flush=True)
                    continue
                for row in ended.answer["rows"]:
                    file.write(json.dumps(row, separators=(",", ":")) + "\n")
                    written += 1
    print(f"{written} of {len(cases)} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
