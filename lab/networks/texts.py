"""What people would hand to `gpumem estimate` for a job's network: the real tools' own output.

    python -m lab.networks.texts JOB      JOB: the table of a job as JSON (jobs.py)

Texts are made on tensors without data (shapes are all the tools print) where the model allows it, so no GPU
is needed: torchinfo with everything it can show, torchinfo as it is called by default, torchsummary, and
print(model); a tool that fails on a model is recorded with its error, since users meet the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib import metadata
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional
from unittest import mock

import torch
from torch import Tensor, nn

from lab.networks.build import build_model
from lab.networks.cuda_calls import cuda_is_here
from lab.networks.jobs import Job, job_of
from lab.networks.tasks import Batch, Feed, task_named

COLUMNS = ("input_size", "output_size", "num_params", "kernel_size", "mult_adds", "trainable")
NEEDS_LABELS = ("seq2seq", "whisper", "forecast")
ONE_IMAGE = ("image", "video", "segment")
BATCH = 2


def summary_texts(job: Job) -> Dict[str, Any]:
    """All texts of one model at one input size."""
    row: Dict[str, Any] = {"summary": job.summary_key, "batch": BATCH, "versions": _versions(job)}
    with _cuda("meta", job):
        texts = _texts(job, *_build(job))
    if "torchinfo_deep" not in texts or "print" not in texts:
        # Some operators refuse tensors without data that they take on a CPU: experts' grouped products.
        cpu = torch.device("cpu")
        with _cuda("cpu", job):
            with_data = _texts(job, build_model(job.entry), cpu)
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
    names = {"torch", "torchinfo", "torchsummary", job.entry.source} - {"repository"}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _build(job: Job) -> tuple[nn.Module, torch.device]:
    meta = torch.device("meta")
    try:
        with meta:
            return build_model(job.entry), meta
    except Exception:  # noqa: BLE001 - a model that reads values while it is built: build it with values
        return build_model(job.entry).to(meta), meta


@contextlib.contextmanager
def values_are_one() -> Iterator[None]:
    """Where a model asks a tensor without data for its value ("is all of the mask set?"), it is 1."""

    def answer(kind: Callable[[int], Any], real: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        return lambda t: kind(1) if t.device.type == "meta" else real(t)

    with contextlib.ExitStack() as stack:
        for name, kind in (("__bool__", bool), ("__int__", int), ("__float__", float), ("item", int)):
            stack.enter_context(mock.patch.object(Tensor, name, answer(kind, getattr(Tensor, name))))
        yield


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
    """Print the texts of one job as a line of JSON."""
    (text,) = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)
    print(json.dumps(summary_texts(job_of(json.loads(text)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
