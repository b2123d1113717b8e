"""Train one job for a few steps, as a user's loop does, and read what memory it took."""

from __future__ import annotations

import math
import os
import time
from contextlib import nullcontext
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from lab.collect.build import build_model, move
from lab.collect.sample import Job
from lab.collect.tasks import Feed, describe_inputs, task_named
from slurm_gpumem.site.calibration.nvml import NvmlGpu

FLOATS = {"bf16": torch.bfloat16}
AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
SLOW_STEP_SECONDS = 2.0
"""A job slower than this per step is measured over three steps instead of five."""
Step = Callable[[], None]


def measure(job: Job, device_name: str) -> Dict[str, Any]:
    """The measured part of a row: peaks in bytes, context, retries, step time; or the error."""
    return measure_and_keep(job, device_name)[0]


def measure_and_keep(job: Job, device_name: str) -> Tuple[Dict[str, Any], Optional[Step]]:
    """The same, and one more step on the last batch, to be called as often as wanted; None after an error."""
    torch.set_num_threads(1)
    started = time.monotonic()
    cuda = device_name == "cuda"
    if cuda and job.toggles.get("expandable_segments"):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.backends.cudnn.benchmark = bool(job.toggles.get("cudnn_benchmark"))
    if job.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    row: Dict[str, Any] = {}
    step: Optional[Step] = None
    try:
        step = train(job, torch.device("cuda", 0) if cuda else torch.device(device_name), row)
    except torch.cuda.OutOfMemoryError as error:
        row["oom"] = True
        row["error"] = _short(error)
    except Exception as error:  # noqa: BLE001 - whatever a model does wrong becomes its row's error
        row["error"] = f"{type(error).__name__}: {_short(error)}"
    if cuda:
        row.update(_memory(row.pop("process_bytes", 0)))
    row["wall_seconds"] = round(time.monotonic() - started, 2)
    return row, step


def train(job: Job, device: torch.device, row: Dict[str, Any]) -> Step:
    """The loop itself; fills `row` as it goes, so that a failing job still tells how far it came.

    Gives back one step more, on the last batch and without waiting for the GPU.
    """
    dtype = FLOATS.get(job.precision, torch.float32)
    model = build_model(job.entry, job.size)
    checkpoint(model, bool(job.toggles.get("checkpointing")))
    model = move(model, device, dtype)
    channels_last = bool(job.toggles.get("channels_last"))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if job.toggles.get("compile"):
        model.compile()
    row["parameters"] = sum(p.numel() for p in model.parameters())
    row["buffers"] = sum(b.numel() for b in model.buffers())
    optimizer = make_optimizer(job.optimizer, model)
    half = AUTOCAST.get(job.precision)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=half == torch.float16)
    make, loss_of = task_named(job.entry.task)
    feed = Feed(job.batch, job.size, device, dtype, job.entry.task_args, getattr(model, "config", None))
    accumulate = int(job.toggles.get("accumulate", 1))
    driver = _driver(row) if device.type == "cuda" else None
    times: List[float] = []
    reserved: List[int] = []
    for step in range(job.steps * accumulate):
        begun = time.monotonic()
        batch = make(feed)
        if channels_last:
            batch.args = tuple(
                a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in batch.args
            )
        if step == 0:
            row["inputs"] = describe_inputs(batch)
        if step % accumulate == 0:
            optimizer.zero_grad()
        with torch.autocast(device.type, half) if half else nullcontext():
            out = model(*batch.args, **batch.kwargs)
            loss = loss_of(out, batch.target)
        scaler.scale(loss).backward()
        if step % accumulate == accumulate - 1:
            scaler.step(optimizer)
            scaler.update()
        if job.toggles.get("evaluate") and step == 1:
            _evaluate(model, make(feed), half, device)
        value = loss.item()
        row["loss"] = round(value, 4) if math.isfinite(value) else "not finite"
        times.append(time.monotonic() - begun)
        row["steps"] = step + 1
        if device.type == "cuda":
            reserved.append(torch.cuda.memory_reserved(device))
        if driver is not None:
            # 0 where the driver does not list this process (another pid namespace).
            now = driver.processes().get(os.getpid()) or 0
            row["process_bytes"] = max(row.get("process_bytes", 0), now)
        if step == 2 and accumulate == 1 and sum(times[1:]) > 2 * SLOW_STEP_SECONDS:
            break
    row["step_seconds"] = round(sorted(times)[len(times) // 2], 4)
    row["reserved_by_step_mib"] = [r >> 20 for r in reserved]
    row["optimizer_tensors"] = sum(
        1 for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)
    )

    def again() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, half) if half else nullcontext():
            loss = loss_of(model(*batch.args, **batch.kwargs), batch.target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return again


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer with its defaults, as users write it; a small rate keeps values finite."""
    return optimizer_over(name, model.parameters())


def optimizer_over(name: str, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The same over any parameters."""
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


def _driver(row: Dict[str, Any]) -> Optional[NvmlGpu]:
    try:
        return NvmlGpu()
    except (ModuleNotFoundError, OSError) as error:
        # Without NVML the allocator's figures are still worth the run.
        row["nvml_error"] = f"{type(error).__name__}: {_short(error)}"
        return None


def _memory(process: int) -> Dict[str, Any]:
    if not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats(0)
    reserved = stats.get("reserved_bytes.all.peak", 0)
    return {
        "allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "reserved_bytes": reserved,
        "process_bytes": process or None,
        "context_bytes": process - stats.get("reserved_bytes.all.current", 0) if process else None,
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
        "segments": stats.get("segment.all.peak", 0),
    }


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
