"""One rank of several, computed and measured on one GPU; rows are appended as they come, done ones skipped.

    python -m slurm_gpumem.lab.ranks.measure --out ranks.jsonl [--only fsdp] [--limit-seconds N]
    python -m slurm_gpumem.lab.ranks.measure --out ranks.jsonl --score

The figure: error of what PyTorch reserves, against what is computed for it (context and, but for DDP, NCCL
left out, since a group without other ranks has no NCCL).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from slurm_gpumem import summarize
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.lab.command import exit_code
from slurm_gpumem.lab.ranks.one_rank import built
from slurm_gpumem.summaries.trace_types import NCCL_FIRST_GROUP
from slurm_gpumem.units import MIB

_SIZES = (
    (1024, 12, 1024, 4),
    (1536, 24, 1024, 4),
    (2048, 24, 1024, 4),
    (2048, 24, 512, 16),
    (4096, 16, 1024, 2),
)
"""Width, depth, length and batch."""
_WORDS = 50304
_STRATEGIES = (
    "ddp", "ddp,gradient_as_bucket_view", "fsdp", "fsdp-grad-op", "fsdp1", "fsdp1-grad-op", "fsdp,mixed",
)  # fmt: skip
_RANKS = (2, 4, 8)


def runs() -> Iterator[Dict[str, Any]]:
    """Every run of the plan."""
    for width, depth, length, batch in _SIZES:
        for strategy in _STRATEGIES:
            precisions = ("bf16",) if "mixed" in strategy else ("fp32", "amp-bf16", "bf16")
            for precision in precisions:
                for ranks in _RANKS[:1] if strategy.startswith("ddp") else _RANKS:
                    yield {
                        "width": width, "depth": depth, "length": length, "batch": batch, "words": _WORDS,
                        "strategy": strategy, "precision": precision, "ranks": ranks,
                    }  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m slurm_gpumem.lab.ranks.measure", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="rows are appended here")
    parser.add_argument("--only", default="", help="strategies whose name contains this")
    parser.add_argument("--gpu", default="h200", help="the GPU that is computed for")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="no run is begun after this")
    parser.add_argument("--tiny", action="store_true", help="the smallest model only (a check)")
    parser.add_argument("--score", action="store_true", help="print the figures of the rows instead")
    args = parser.parse_args(argv)
    return exit_code(lambda: _score(args.out) if args.score else _measure(args))


def _measure(args: argparse.Namespace) -> int:
    started = time.monotonic()
    done = {_key(row["run"]) for row in _rows(args.out)}
    for run in runs():
        if args.tiny:
            run = {**run, "width": 64, "depth": 2, "length": 16, "batch": 2, "words": 128}
        if args.only not in run["strategy"] or _key(run) in done:
            continue
        if time.monotonic() - started > args.limit_seconds:
            break
        done.add(_key(run))
        row = {"run": run, **_computed(run, args.gpu), **_real(run, args.device)}
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return 0


def _key(run: Dict[str, Any]) -> str:
    return json.dumps(run, sort_keys=True)


def _rows(path: Path) -> List[Dict[str, Any]]:
    """Rows so far; a last line that was cut off is measured again."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{path}: a line is cut off; its run is measured again", file=sys.stderr)
    return rows


def _computed(run: Dict[str, Any], gpu: str) -> Dict[str, Any]:
    """Reserved and allocated MiB of the rank, without the context and, but for DDP, without NCCL."""
    ids = torch.zeros(run["batch"], run["length"], dtype=torch.int64, device="meta")
    summary = summarize(built(run, "meta"), ids, optimizer="adamw", precision=run["precision"])
    job = replace(training_job(summary, StatedTraining()), gpus=run["ranks"], strategy=run["strategy"])
    found = registry.run("trace", summary, job, find_gpu(gpu))
    # NCCL's memory is not PyTorch's: it is never among what PyTorch reserves.
    outside = found.parts["context"] + NCCL_FIRST_GROUP // MIB
    return {
        "computed_reserved_mib": found.peak_mib - outside,
        "computed_allocated_mib": found.peak_mib - outside - found.parts["fragmentation"],
    }


def _real(run: Dict[str, Any], device: str) -> Dict[str, Any]:
    command = [sys.executable, "-m", "slurm_gpumem.lab.ranks.one_rank"]
    text = json.dumps({**run, "device": device})
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "took longer than 300 s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    figures: Dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _score(path: Path) -> int:
    """Median and P90 of the error of reserved memory, for each strategy."""
    rows = [row for row in _rows(path) if row.get("reserved_mib")]
    groups: Dict[str, List[float]] = {}
    for row in rows:
        error = abs(row["computed_reserved_mib"] / row["reserved_mib"] - 1) * 100
        for name in (row["run"]["strategy"], "all"):
            groups.setdefault(name, []).append(error)
    print(f"{'strategy':<28} {'runs':>5} {'median':>8} {'P90':>8}")
    for name, errors in groups.items():
        print(f"{name:<28} {len(errors):>5} {median(errors):>6.1f} % {_p90(errors):>6.1f} %")
    failed = sum("error" in row for row in _rows(path))
    print(f"{failed} runs failed")
    return 0 if rows else 1


def _p90(errors: Sequence[float]) -> float:
    return quantiles(errors, n=10)[-1] if len(errors) > 1 else errors[0]


if __name__ == "__main__":
    sys.exit(main())
