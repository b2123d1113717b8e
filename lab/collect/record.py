"""Record the allocator's events of a few training steps: the order of allocations and frees, and the peaks.

    python -m lab.collect.record CONFIG.toml --out DIR

Each recording is one JSON document: `events` are [kind, block, size] with kind one of
"a" (allocated), "f" (freed), "s" (segment taken from the driver), "r" (segment returned), and block a
number that no other allocation or segment of the recording has; annotated ones have a fourth element,
the index into `ops` of the operator that was running. `peaks` are torch.cuda.memory_stats at the end.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.children import Children
from lab.collect.build import import_sources
from lab.collect.measure import train
from lab.collect.sample import Job, load_jobs
from lab.command import exit_code
from lab.device import describe_device
from lab.probe import operators
from lab.probe.cases import all_cases

STATS = ("allocated_bytes", "requested_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")
KINDS = {
    "alloc": "a",
    "free_completed": "f",
    "segment_alloc": "s",
    "segment_free": "r",
    "segment_map": "m",
    "segment_unmap": "u",
    "oom": "o",
}
MAX_EVENTS = 2_000_000


class _Ops(TorchDispatchMode):
    """Notes when each operator begins, with the shapes of its tensors.

    Under a dispatch mode the engine sums gradients into new blocks, not in place: look up operators here, and
    peaks in a recording without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: List[Tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = ",".join("x".join(map(str, a.shape)) for a in args if isinstance(a, torch.Tensor))
        self.seen.append(
            (time.time_ns() // 1000, f"{func.overloadpacket.__name__}({shapes}){_options(func, args)}")
        )
        return func(*args, **(kwargs or {}))


def _options(func: Any, args: Any) -> str:
    """Stride, padding, dilation and groups of a convolution: its workspace depends on them."""
    if "convolution" not in func.overloadpacket.__name__:
        return ""
    return json.dumps([a for a in args if isinstance(a, (list, int, bool))], separators=(",", ":"))


def record(job: Job, annotate: bool) -> Dict[str, Any]:
    """Train in this process with the allocator's history on."""
    torch.set_num_threads(1)
    if job.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=MAX_EVENTS, context=None)
    row: Dict[str, Any] = {}
    ops = _Ops()
    if annotate:
        with ops:
            train(job, torch.device("cuda", 0), row)
    else:
        train(job, torch.device("cuda", 0), row)
    stats = torch.cuda.memory_stats(0)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events, names = _compact(trace, ops.seen)
    return {
        "key": job.key,
        "summary": job.summary_key,
        **job.entry.as_row(),
        "size": job.size,
        "batch": job.batch,
        "optimizer": job.optimizer,
        "precision": job.precision,
        **row,
        "peaks": {name: stats.get(f"{name}.all.peak", 0) for name in STATS},
        "retries": stats.get("num_alloc_retries", 0),
        "ops": names,
        "events": events,
    }


def _compact(trace: List[Dict[str, Any]], ops: List[Tuple[int, str]]) -> Tuple[List[List[Any]], List[str]]:
    """Events with small numbers for addresses; ops numbered in order of first use."""
    numbers: Dict[Tuple[str, int], int] = {}
    given = itertools.count()
    names: Dict[str, int] = {}
    events: List[List[Any]] = []
    at = -1
    for entry in trace:
        kind = KINDS.get(entry["action"])
        if kind is None:
            continue
        space = "block" if kind in "af" else "segment"
        address = (space, entry.get("addr", 0))
        if kind in "as" or address not in numbers:
            # An address that is taken again is another allocation: its number is new.
            numbers[address] = next(given)
        event: List[Any] = [kind, numbers[address], entry["size"]]
        while at + 1 < len(ops) and ops[at + 1][0] <= entry.get("time_us", 0):
            at += 1
        if ops and at >= 0:
            event.append(names.setdefault(ops[at][1], len(names)))
        events.append(event)
    return events, list(names)


def main(argv: Optional[List[str]] = None) -> int:
    """Record every job of the configuration, one file for all of them."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.record", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=240)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument(
        "--annotate", type=int, default=14, help="record the first N again with operators named"
    )
    parser.add_argument("--max-jobs", type=int, default=0)
    parser.add_argument(
        "--probe-seconds", type=float, default=40, help="then probe single operators (probe.py); 0: do not"
    )
    return exit_code(lambda: _main(parser.parse_args(argv)))


def _main(options: argparse.Namespace) -> int:
    started = time.monotonic()
    jobs = load_jobs(options.config)
    jobs = jobs[: options.max_jobs] if options.max_jobs else jobs
    versions = import_sources([job.entry for job in jobs])
    about = describe_device("cuda", versions)
    options.out.mkdir(parents=True, exist_ok=True)
    queue = [(job, False) for job in jobs]
    queue += [(job, True) for job in jobs[: options.annotate]]
    gc.collect()
    gc.freeze()
    children, written = Children(), 0
    with gzip.open(options.out / "recordings.jsonl.gz", "wt", compresslevel=9) as file:
        file.write(json.dumps({"about": about}) + "\n")
        while (queue and time.monotonic() - started < options.limit_seconds) or len(children):
            while (
                queue and len(children) < options.jobs and time.monotonic() - started < options.limit_seconds
            ):
                job, annotate = queue.pop(0)
                tag = f"{job.key}{' annotated' if annotate else ''}"
                children.start(tag, lambda job=job, annotate=annotate: record(job, annotate), 90)  # type: ignore[misc]
            for ended in children.wait(1):
                if ended.answer is None:
                    print(f"{ended.tag}: {ended.error}", flush=True)
                    continue
                file.write(json.dumps(ended.answer, separators=(",", ":")) + "\n")
                written += 1
                peaks, events = ended.answer["peaks"], len(ended.answer["events"])
                reserved = peaks["reserved_bytes"] >> 20
                print(
                    f"{ended.tag}: {events} events, {reserved} MiB reserved, {ended.seconds:.1f} s",
                    flush=True,
                )
    print(f"{written} recordings")
    if not options.probe_seconds:
        return 0
    return operators.run(options.out, options.probe_seconds, options.jobs, all_cases(5))


if __name__ == "__main__":
    sys.exit(main())
