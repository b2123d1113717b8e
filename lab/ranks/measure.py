"""One rank of several, computed and measured on one GPU; rows are appended as they come, done ones skipped.

    python -m lab.ranks.measure --out computed.jsonl --compute [--chosen] [--only fsdp]
    python -m lab.ranks.measure --out measured.jsonl --plan computed.jsonl [--limit-seconds N]
    python -m lab.ranks.measure --out measured.jsonl --again
    python -m lab.ranks.measure --score [--out measured.jsonl]

What is computed is noted first, where there is no GPU; a measured row holds both, and what is computed now
after --again. The figure: error of what PyTorch reserves, against what is computed for it (context and NCCL
left out, which PyTorch does not count).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from lab.command import exit_code
from lab.forked import imported, measured
from lab.places import DATA
from lab.ranks.one_rank import built, step, train
from slurm_gpumem import summarize
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.trace_types import NCCL_FIRST_GROUP
from slurm_gpumem.summaries.types import ModelSummary
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
ROWS = DATA / "ranks" / "rows.jsonl"
_STRATEGIES = (
    "ddp", "ddp,gradient_as_bucket_view", "fsdp", "fsdp-grad-op", "fsdp1", "fsdp1-grad-op", "fsdp,mixed",
    "tp",
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


def chosen() -> List[Dict[str, Any]]:
    """Every strategy in every precision, first each once, then again with another size and other ranks."""
    found: List[Dict[str, Any]] = []
    for turn in range(2):
        groups: Dict[str, List[Dict[str, Any]]] = {}
        for run in runs():
            groups.setdefault(f"{run['strategy']} {run['precision']}", []).append(run)
        for at, group in enumerate(groups.values()):
            sizes = _SIZES[1:4] if group[0]["strategy"].startswith("ddp") else _SIZES[1:]
            size = sizes[(at + turn) % len(sizes)]
            same = [run for run in group if (run["width"], run["depth"], run["length"], run["batch"]) == size]
            found.append(same[(at // 3 + turn) % len(same)])
    return found


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.ranks.measure", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROWS, help="rows are appended here")
    parser.add_argument("--only", default="", help="strategies whose name contains this")
    parser.add_argument("--gpu", default="h200", help="the GPU that is computed for")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--limit-seconds", type=float, default=1e9, help="no run is begun after this")
    parser.add_argument("--tiny", action="store_true", help="the smallest model only (a check)")
    parser.add_argument("--chosen", action="store_true", help="two runs for each strategy and precision only")
    parser.add_argument("--compute", action="store_true", help="compute only")
    parser.add_argument("--plan", type=Path, help="rows of --compute: these are measured, in their order")
    parser.add_argument("--again", action="store_true", help="compute the measured rows of --out again")
    parser.add_argument("--score", action="store_true", help="print the figures of the rows instead")
    args = parser.parse_args(argv)
    if not (args.compute or args.plan or args.again or args.score):
        # Children are forked, which PyTorch's threads do not survive: nothing is traced in the same process.
        parser.error("one of --compute, --plan, --again and --score is needed")
    if args.again:
        return exit_code(lambda: _again(args.out, args.gpu))
    return exit_code(lambda: _score(args.out) if args.score else _measure(args))


def _measure(args: argparse.Namespace) -> int:
    started = time.monotonic()
    done = {_key(row["run"]) for row in _rows(args.out)}
    if not args.compute:
        imported(())
    for row in _planned(args):
        run = row["run"]
        if args.only not in run["strategy"] or _key(run) in done:
            continue
        left = args.limit_seconds - (time.monotonic() - started)
        if left < min(5.0, args.limit_seconds):
            break
        done.add(_key(run))
        if args.compute:
            row = {**row, **_computed(run, args.gpu)}
        else:
            row = {**row, **measured(partial(train, run, args.device), min(60.0, left))}
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return 0


def _planned(args: argparse.Namespace) -> Iterator[Dict[str, Any]]:
    if args.plan:
        yield from _rows(args.plan)
        return
    tiny = {"width": 256, "depth": 2, "length": 16, "batch": 2, "words": 128} if args.tiny else {}
    for run in chosen() if args.chosen else runs():
        yield {"run": {**run, **tiny}}


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
    """Reserved and allocated MiB of the rank, without the context and NCCL."""
    sizes = tuple(run[name] for name in ("width", "depth", "length", "batch", "words"))
    summary = _traced(sizes, run["precision"])
    job = replace(training_job(summary, StatedTraining()), gpus=run["ranks"], strategy=run["strategy"])
    found = registry.run("trace", summary, job, find_gpu(gpu))
    # NCCL's memory is not PyTorch's: it is never among what PyTorch reserves.
    outside = found.parts["context"] + NCCL_FIRST_GROUP // MIB
    nccl = 0 if run["strategy"].startswith("ddp") else NCCL_FIRST_GROUP // MIB
    return {
        "computed_reserved_mib": found.peak_mib - outside,
        "computed_allocated_mib": found.peak_mib - outside - found.parts["fragmentation"],
        "request_mib": found.request_mib - nccl,  # a group of the fake backend has no NCCL
    }


@lru_cache(maxsize=4)
def _traced(sizes: Tuple[int, ...], precision: str) -> ModelSummary:
    width, depth, length, batch, words = sizes
    run = {"width": width, "depth": depth, "words": words, "precision": precision}
    ids = torch.zeros(batch, length, dtype=torch.int64, device="meta")
    return summarize(
        built(run, "meta"),
        ids,
        optimizer="adamw",
        precision=precision,
        step=lambda model, batch, optimizer: step(model, batch, optimizer, precision),
    )


def _again(path: Path, gpu: str) -> int:
    """Write beside each measured row what is computed for it now."""
    rows = [{**row, "now": _computed(row["run"], gpu)} for row in _rows(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return 0


def _score(path: Path) -> int:
    """Median and P90 of the error of reserved memory, for each strategy."""
    rows = [row for row in _rows(path) if row.get("reserved_bytes") and not row["run_code"]]
    groups: Dict[str, List[Dict[str, Any]]] = {}
    for row in rows:
        for name in (row["run"]["strategy"], "all"):
            groups.setdefault(name, []).append(row)
    groups["all"] = groups.pop("all", [])
    print(f"{'':<28} {'':>5}   {'noted before':^17} {'now':^29}")
    print(f"{'strategy':<28} {'runs':>5} {'median':>8} {'P90':>8} {'median':>8} {'P90':>8}  too small")
    for name, some in groups.items() if rows else ():
        now = [row["now"] for row in some if "now" in row]
        below = sum(row["now"]["request_mib"] * MIB < row["process_bytes"] for row in some if "now" in row)
        print(
            f"{name:<28} {len(some):>5} {_errors(some, some)} "
            + (f"{_errors(some, now)} {below:>10}" if len(now) == len(some) else "")
        )
    for kind, some in {"FSDP2": _fsdp2(rows, True), "others": _fsdp2(rows, False)}.items():
        if some and all("now" in row for row in some):
            now = [row["now"] for row in some]
            print(f"allocated, {kind:<41}{_errors(some, now, 'allocated'):>17}")
    failed = sum(bool(row.get("run_code")) for row in _rows(path))
    print(f"{failed} runs failed")
    return 0 if rows else 1


def _fsdp2(rows: Sequence[Dict[str, Any]], wanted: bool) -> List[Dict[str, Any]]:
    """Runs of FSDP2, or those of the others."""
    names = [row["run"]["strategy"] for row in rows]
    return [row for row, name in zip(rows, names) if (name[:4] == "fsdp" and name[:5] != "fsdp1") == wanted]


def _errors(
    rows: Sequence[Dict[str, Any]], computed: Sequence[Dict[str, Any]], what: str = "reserved"
) -> str:
    errors = [
        abs(one[f"computed_{what}_mib"] * MIB / row[f"{what}_bytes"] - 1) * 100
        for row, one in zip(rows, computed)
    ]
    return f"{median(errors):>6.1f} % {_p90(errors):>6.1f} %"


def _p90(errors: Sequence[float]) -> float:
    return sorted(errors)[int(0.9 * len(errors))]


if __name__ == "__main__":
    sys.exit(main())
