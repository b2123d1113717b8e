"""Trace the catalogue's library models, where timm, torchvision and transformers are installed.

    python -m lab.known.collect --out DIR [--jobs 16] [--sizes N]

One file a model and size: print(model), the tree of its modules with their parameters, its layers as they are
called, and its traced steps in each precision. `python -m lab.known.pack` makes
models/known-models.bin from them.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

from lab.children import run_each
from lab.command import exit_code
from lab.known import BATCH
from lab.networks.build import build_model, import_sources
from lab.networks.entries import Entry, load_catalogue
from lab.networks.tasks import Feed, task_named
from lab.networks.train import FLOATS
from slurm_gpumem.files import write_atomic
from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.inputs import Inputs
from slurm_gpumem.tracing.model.live import summarize

LIBRARIES = ("torchvision", "timm", "transformers")
PRECISIONS = ("fp32", "amp-bf16", "bf16")
LIMIT_SECONDS = 100


def traced(entry: Entry, size: int, precisions: Tuple[str, ...]) -> Dict[str, Any]:
    """What a model prints and how it trains at one input size."""
    model = _built(entry)
    found: Dict[str, Any] = {**entry.as_row(), "size": size, "print": str(model), "tree": list(_tree(model))}
    found["traces"], found["errors"] = {}, {}
    for precision in precisions:
        try:
            document = json.loads(to_json(_traced(entry, size, model, precision)))
        except Exception as error:  # noqa: BLE001 - whatever a library's code raises there
            found["errors"][precision] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        if precision == "fp32":
            found["model_fields"], found["layers"] = document["model"], document["layers"]
        found["traces"][precision] = document["trace"]
    return found


def _built(entry: Entry) -> nn.Module:
    try:
        with torch.device("meta"):
            return build_model(entry)
    except Exception:  # noqa: BLE001 - a model that reads values while it is built
        return build_model(entry)


def _traced(entry: Entry, size: int, model: nn.Module, precision: str) -> ModelSummary:
    make, loss = task_named(entry.task)
    dtype = FLOATS.get(precision, torch.float32)

    def batch(count: int) -> Inputs:
        config = getattr(model, "config", None)
        made = make(Feed(count, size, torch.device("meta"), dtype, entry.task_args, config))
        return Inputs(made.args, made.kwargs, made.target)

    return summarize(
        model, batch, batch_size=BATCH, optimizer="adam", loss=loss, precision=precision, name=entry.build
    )


def _tree(model: nn.Module, depth: int = 0) -> Iterator[Tuple[int, str, int]]:
    """Depth, class and parameters of every module, its children's included, in the order of definition."""
    yield depth, type(model).__name__, sum(p.numel() for p in model.parameters())
    for child in model.children():
        yield from _tree(child, depth + 1)


def name_of(entry: Entry, size: int) -> str:
    """The file of a model and size."""
    return sha1(f"{entry.id}@{size}".encode()).hexdigest()[:16] + ".json.xz"


def _into(folder: Path, entry: Entry, size: int) -> Dict[str, Any]:
    torch.set_num_threads(1)
    started = time.process_time()
    found = traced(entry, size, PRECISIONS)
    text = json.dumps(found, separators=(",", ":"))
    if found["traces"]:
        write_atomic(folder / name_of(entry, size), lzma.compress(text.encode(), preset=2), mode=None)
    return {"cpu": round(time.process_time() - started, 1), "errors": found["errors"]}


def tasks(sizes: int) -> List[Tuple[Entry, int]]:
    """Every model at its usual size first, then at others."""
    entries = [entry for entry in load_catalogue() if entry.source in LIBRARIES]
    entries = [entry for entry in entries if entry.task != "detect"]
    return [(e, e.sizes[at]) for at in range(sizes) for e in entries if at < len(e.sizes)]


def main(argv: Optional[List[str]] = None) -> int:
    """Trace what the folder does not have."""
    parser = argparse.ArgumentParser(prog="python -m lab.known.collect", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sizes", type=int, default=1, help="sizes of each model (1)")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    missing = [one for one in tasks(options.sizes) if not (options.out / name_of(*one)).exists()]
    print(f"{len(missing)} to trace; {import_sources([entry for entry, _ in missing])}", flush=True)
    works = [(f"{entry.id}@{size}", partial(_into, options.out, entry, size)) for entry, size in missing]
    made = 0
    for ended in run_each(works, options.jobs, LIMIT_SECONDS):
        made += ended.answer is not None
        said = json.dumps(ended.answer) if ended.answer else f"FAILED {ended.error[-200:]}"
        print(f"{ended.tag}: {said}", flush=True)
    print(f"{made} traced")
    return 0


if __name__ == "__main__":
    sys.exit(main())
