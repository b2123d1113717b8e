"""Train one job for a few steps, as a user's loop does.

    python -m lab.networks.train JOB      JOB: the table of a job as JSON (jobs.py)

`lab.scripts` traces and measures this command like any other script.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any, Iterable, List, Optional

import torch

from lab.networks.build import build_model, move
from lab.networks.jobs import Job, job_of
from lab.networks.tasks import Batch, Feed, task_named

FLOATS = {"bf16": torch.bfloat16}
AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    (text,) = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)
    train(
        job_of(json.loads(text)),
        torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"),
    )
    return 0


def train(job: Job, device: torch.device) -> None:
    """The loop itself: a fresh batch made on the device for every step."""
    torch.backends.cudnn.benchmark = bool(job.toggles.get("cudnn_benchmark"))
    if job.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    dtype = FLOATS.get(job.precision, torch.float32)
    model = build_model(job.entry)
    checkpoint(model, bool(job.toggles.get("checkpointing")))
    model = move(model, device, dtype)
    if job.toggles.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if job.toggles.get("compile"):
        model.compile()
    optimizer = optimizer_over(job.optimizer, model.parameters())
    half = AUTOCAST.get(job.precision)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=half == torch.float16)
    make, loss_of = task_named(job.entry.task)
    feed = Feed(job.batch, job.size, device, dtype, job.entry.task_args, getattr(model, "config", None))
    accumulate = int(job.toggles.get("accumulate", 1))
    for step in range(job.steps * accumulate):
        batch = channels_last(make(feed)) if job.toggles.get("channels_last") else make(feed)
        if step % accumulate == 0:
            optimizer.zero_grad()
        with torch.autocast(device.type, half) if half else nullcontext():
            loss = loss_of(model(*batch.args, **batch.kwargs), batch.target)
        scaler.scale(loss).backward()
        if step % accumulate == accumulate - 1:
            scaler.step(optimizer)
            scaler.update()
        if job.toggles.get("evaluate") and step == 1:
            _evaluate(model, make(feed), half, device)
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)


def channels_last(batch: Batch) -> Batch:
    """The batch with its images in that layout."""
    args = (a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in batch.args)
    return Batch(tuple(args), batch.kwargs, batch.target)


def optimizer_over(name: str, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer with its defaults, as users write it; a small rate keeps values finite."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-5)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-5)
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9 if name == "sgd-momentum" else 0.0)


def _evaluate(model: torch.nn.Module, batch: Any, half: Optional[torch.dtype], device: torch.device) -> None:
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, half) if half else nullcontext():
        for _ in range(2):
            model(*batch.args, **batch.kwargs)
    model.train()


def checkpoint(model: Any, wanted: bool) -> None:
    """Switch a library's own activation checkpointing on, if wanted."""
    if not wanted:
        return
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.set_grad_checkpointing(True)


if __name__ == "__main__":
    sys.exit(main())
