"""What people would hand to `gpumem estimate` for each measured model: the real tools' own output.

    python -m lab.collect.summarise CONFIG.toml [CONFIG.toml ...] --out DIR [--jobs N]

Texts are made on tensors without data (shapes are all the tools print) where the model allows it, so no GPU
is needed and no measured process is disturbed. One line a model and input size: torchinfo with everything it
can show, torchinfo as it is called by default, torchsummary, and print(model); a tool that fails on a model
is recorded with its error, since users meet the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set
from unittest import mock

import torch
from torch import nn

from lab.children import Children
from lab.collect.build import build_model, import_sources
from lab.collect.cuda_calls import cuda_is_here
from lab.collect.footprint import values_are_one
from lab.collect.sample import Job, load_jobs
from lab.collect.tasks import Batch, Feed, task_named
from lab.command import exit_code

COLUMNS = ("input_size", "output_size", "num_params", "kernel_size", "mult_adds", "trainable")
NEEDS_LABELS = ("seq2seq", "whisper", "forecast")
ONE_IMAGE = ("image", "video", "segment", "volume", "series", "sequence", "points", "table", "regress")
BATCH = 2


def summarise(job: Job) -> Dict[str, Any]:
    """All texts of one model at one input size."""
    row: Dict[str, Any] = {"summary": job.summary_key, "batch": BATCH, "versions": _versions(job)}
    with _cuda("meta", job):
        texts = _texts(job, *_build(job))
    if "torchinfo_deep" not in texts or "print" not in texts:
        # Some operators refuse tensors without data that they take on a CPU: experts' grouped products.
        cpu = torch.device("cpu")
        with _cuda("cpu", job):
            with_data = _texts(job, build_model(job.entry, job.size), cpu)
        texts = with_data if "torchinfo_deep" in with_data else texts
    return {**row, **texts}


def _cuda(device: str, job: Job) -> ContextManager[Any]:
    """Networks of people who have a GPU say "cuda", in their code and their arguments."""
    return cuda_is_here(device) if job.entry.source == "repository" else contextlib.nullcontext()


def _texts(job: Job, model: nn.Module, device: torch.device) -> Dict[str, Any]:
    # Quantized layers print numbers, which need data: the caller tries again with some.
    row: Dict[str, Any] = _attempt("print", lambda: str(model))
    row["parameters"] = sum(p.numel() for p in model.parameters())
    make, _ = task_named(job.entry.task)
    config = getattr(model, "config", None)
    batch = make(Feed(BATCH, job.size, device, torch.float32, job.entry.task_args, config))
    full: Dict[str, Any] = {"depth": 20, "col_names": COLUMNS}
    row.update(_attempt("torchinfo_full", lambda: _torchinfo(model, batch, job.entry.task, device, full)))
    deep: Dict[str, Any] = {"depth": 20}
    row.update(_attempt("torchinfo_deep", lambda: _torchinfo(model, batch, job.entry.task, device, deep)))
    row.update(_attempt("torchinfo", lambda: _torchinfo(model, batch, job.entry.task, device, {})))
    row.update(_attempt("torchsummary", lambda: _torchsummary(model, batch, job.entry.task, device)))
    return row


def _versions(job: Job) -> Dict[str, str]:
    names = {"torch", "torchinfo", "torchsummary", job.entry.source} - {"own", "repository"}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _build(job: Job) -> tuple[nn.Module, torch.device]:
    meta = torch.device("meta")
    try:
        with meta:
            return build_model(job.entry, job.size), meta
    except Exception:  # noqa: BLE001 - a model that reads values while it is built: build it with values
        return build_model(job.entry, job.size).to(meta), meta


def _attempt(name: str, make: Callable[[], str]) -> Dict[str, str]:
    try:
        with values_are_one():
            return {name: make()}
    except Exception as error:  # noqa: BLE001 - the tool's failure is the finding
        return {f"{name}_error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _torchinfo(
    model: nn.Module, batch: Batch, task: str, device: torch.device, options: Dict[str, Any]
) -> str:
    import torchinfo

    dropped = () if task in NEEDS_LABELS else ("labels",)
    kwargs = {k: v for k, v in batch.kwargs.items() if k not in (*dropped, "return_loss")}
    data: Any = kwargs if kwargs else list(batch.args)
    return str(torchinfo.summary(model, input_data=data, device=device, verbose=0, mode="train", **options))


def _torchsummary(model: nn.Module, batch: Batch, task: str, device: torch.device) -> str:
    import torchsummary

    tensors = [v for v in (*batch.args, *batch.kwargs.values()) if isinstance(v, torch.Tensor)]
    shapes = [tuple(t.shape[1:]) for t in tensors[: 1 if task in ONE_IMAGE else None]]
    said = io.StringIO()
    # torchsummary asks for torch.FloatTensor, which means the CPU: let it mean "float" on our device.
    with contextlib.redirect_stdout(said), mock.patch.object(torch, "FloatTensor", torch.float32), device:
        torchsummary.summary(model, shapes[0] if len(shapes) == 1 else shapes, device="cpu")
    return said.getvalue()


def main(argv: Optional[List[str]] = None) -> int:
    """Make the texts of every model in the configurations that --out does not hold yet."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.summarise", description=__doc__)
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit-seconds", type=float, default=120, help="for one model")
    parser.add_argument("--total-seconds", type=float, default=1e9, help="start no model after this time")
    parser.add_argument("--only", default="", help="models whose id contains this text")
    return exit_code(lambda: _main(parser.parse_args(argv)))


def _main(options: argparse.Namespace) -> int:
    started = time.monotonic()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "summaries.jsonl.gz"
    done = _keys(path)
    wanted = {job.summary_key: job for config in options.configs for job in load_jobs(config)}
    queue = [job for key, job in wanted.items() if key not in done and options.only in key]
    print(f"{len(queue)} to make, {len(done)} made before; {import_sources([j.entry for j in queue])}")
    children, failed = Children(), 0
    # A gzip member a line: what is there is kept whenever the run ends, and readers see one stream.
    with open(path, "ab") as file:
        while queue or len(children):
            if time.monotonic() - started > options.total_seconds:
                queue.clear()
            while queue and len(children) < options.jobs:
                job = queue.pop(0)
                children.start(job.summary_key, lambda job=job: summarise(job), options.limit_seconds)  # type: ignore[misc]
            for ended in children.wait(1):
                if ended.answer is None:
                    failed += 1
                    print(f"{ended.tag}: {ended.error}", flush=True)
                else:
                    line = json.dumps(ended.answer, separators=(",", ":")) + "\n"
                    file.write(gzip.compress(line.encode()))
                    file.flush()
    print(f"{failed} failed")
    return 1 if failed else 0


def _keys(path: Path) -> Set[str]:
    if not path.exists():
        return set()
    with gzip.open(path, "rt") as file:
        return {json.loads(line)["summary"] for line in file}


if __name__ == "__main__":
    sys.exit(main())
