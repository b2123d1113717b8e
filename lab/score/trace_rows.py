"""Trace models of measured runs again, on this machine's CPU, and keep the traces in a folder.

    python -m lab.score.trace_rows --cache DIR [--data DIR] [--jobs N]

Each run is traced in a forked child with a time limit; what the folder has already is not traced again.
Runs of the networks that were written for measuring (source "own") have stored traces, which are put into the
folder: their code is in the history alone. `trace_score` compares the traces with the measurements.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import time
from contextlib import nullcontext
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from lab.children import run_each
from lab.command import exit_code
from lab.ground_truth import load_ground_truth_rows
from lab.networks.build import build_model, import_sources
from lab.networks.cuda_calls import cuda_is_here
from lab.networks.entries import Entry
from lab.networks.tasks import Feed, task_named
from lab.networks.train import FLOATS, channels_last, checkpoint, optimizer_over
from lab.places import GROUND_TRUTH, OWN_TRACES, shown
from lab.rows import read_rows
from slurm_gpumem.files import write_atomic
from slurm_gpumem.summaries.parsers.own import parse, to_json
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.inputs import Inputs
from slurm_gpumem.tracing.model.live import summarize

Row = Mapping[str, Any]
LIMIT_SECONDS = 300


def trace_row(row: Row, **options: Any) -> ModelSummary:
    """Build the row's model and trace its training as it was measured."""
    entry = entry_of(row)
    # Networks that people wrote say "cuda" as they are built and run: the command lets them, so does this.
    theirs = entry.source == "repository"
    with cuda_is_here("cpu") if theirs else nullcontext():
        model = build_model(entry)
    toggles = row.get("toggles", {})
    checkpoint(model, bool(toggles.get("checkpointing")))
    make, loss = task_named(row["task"])
    dtype = FLOATS.get(row["precision"], torch.float32)
    last = bool(toggles.get("channels_last"))

    # Detectors read their boxes.
    device = torch.device("cpu" if row["task"] == "detect" else "meta")

    def batch(size: int) -> Inputs:
        config = getattr(model, "config", None)
        made = make(Feed(size, row["size"], device, dtype, row["task_args"], config))
        made = channels_last(made) if last else made
        return Inputs(made.args, made.kwargs, made.target)

    optimizer: Callable[..., torch.optim.Optimizer] = lambda p: optimizer_over(row["optimizer"], p)  # noqa: E731
    with cuda_is_here("meta") if theirs else nullcontext():
        return summarize(
            model,
            batch,
            batch_size=row["batch"],
            optimizer=optimizer,
            loss=loss,
            precision="fp32" if row["precision"] == "tf32" else row["precision"],
            grad_accumulation=int(toggles.get("accumulate", 1)),
            channels_last=last,
            evaluate=bool(toggles.get("evaluate")),
            name=row["model"],
            **options,
        )


def entry_of(row: Row) -> Entry:
    """The catalogue's entry, from a row."""
    names = ("source", "family", "build", "task", "args", "task_args")
    return Entry(id=row["model"], **{name: row[name] for name in names})


def path_of(cache: Path, key: str) -> Path:
    """Where a run's trace is kept."""
    return cache / f"{sha1(key.encode()).hexdigest()[:20]}.json.gz"


def kept_trace(cache: Path, key: str) -> Optional[Tuple[ModelSummary, Dict[str, Any]]]:
    """A run's traced summary and what is kept beside it; None where the folder has none."""
    path = path_of(cache, key)
    if not path.exists():
        return None
    with gzip.open(path, "rt") as file:
        beside, text = json.loads(file.readline()), file.read()
    return parse(text, origin=key), beside


def unpack_own(cache: Path) -> None:
    """Put the stored traces into the folder, where it does not have them yet."""
    for row in read_rows(OWN_TRACES):
        path = path_of(cache, row["key"])
        if not path.exists():
            text = row.pop("trace")
            write_atomic(path, gzip.compress(f"{json.dumps(row)}\n{text}".encode(), 1), mode=None)


def wanted_rows(data: Optional[Path]) -> List[Row]:
    """The runs that went well and whose networks can still be built."""
    rows = [row for row in load_ground_truth_rows(data) if not row.get("error") and row.get("reserved_bytes")]
    return [row for row in rows if row["source"] != "own"]


def _trace_into(path: Path, row: Row) -> Dict[str, Any]:
    torch.set_num_threads(1)
    started, cpu = time.monotonic(), time.process_time()
    summary = trace_row(row)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    kept = {"key": row["key"], "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}
    text = json.dumps(kept) + "\n" + to_json(summary)
    write_atomic(path, gzip.compress(text.encode(), 6), mode=None)
    return kept


def main(argv: Optional[List[str]] = None) -> int:
    """Trace what is missing."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.trace_rows", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"measured runs ({shown(GROUND_TRUTH)})")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="children at the same time (1)")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    options.cache.mkdir(parents=True, exist_ok=True)
    unpack_own(options.cache)
    rows = wanted_rows(options.data)
    left = [row for row in rows if not path_of(options.cache, row["key"]).exists()]
    print(f"{len(rows)} runs, {len(left)} to trace", flush=True)
    trace_missing(left, options.cache, options.jobs)
    return 0


def trace_missing(left: Sequence[Row], cache: Path, jobs: int = 1) -> None:
    """Trace these rows into the folder, each in a child of its own."""
    import_sources([entry_of(row) for row in left])
    gc.collect()
    gc.freeze()
    works = [(row["key"], partial(_trace_into, path_of(cache, row["key"]), row)) for row in left]
    failed = 0
    for done, ended in enumerate(run_each(works, jobs, LIMIT_SECONDS), 1):
        failed += ended.answer is None
        said = f"{ended.answer['cpu_seconds']:.1f} s" if ended.answer else f"FAILED {ended.error[-200:]}"
        print(f"{done}/{len(left)} {ended.tag}: {said}", flush=True)
    print(f"{len(left) - failed} traced, {failed} failed")


if __name__ == "__main__":
    sys.exit(main())
