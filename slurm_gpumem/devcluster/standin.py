"""A stand-in for a training job: it holds GPU memory along a given curve and fails as PyTorch does.

Run inside a job of the dev cluster: `gpumem-standin --peak 11600 --steps 20 --seconds 3`.
What it "allocates" is entered in the ledgers of the GPUs that Slurm gave it (CUDA_VISIBLE_DEVICES).
It needs only the standard library, so that jobs of any user can run it from a copy.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import List, Optional

from slurm_gpumem.devcluster.ledger import LedgerError, LedgerGpu
from slurm_gpumem.devcluster.ledger import OutOfMemoryError as GpuIsFull

_SHARD_MIB = 1024
_CONTEXT_SHARE = 0.05
_WEIGHTS_SHARE = 0.3
"""Fractions of the peak that are in use before the first step: the context, then the model."""


class OutOfMemoryError(RuntimeError):
    """CUDA out of memory, as PyTorch raises it."""


# Python prints the module before the name; hooks and people look for PyTorch's own.
OutOfMemoryError.__module__ = "torch"


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point: simulate the job."""
    args = _parser().parse_args(argv)
    try:
        gpus = _visible_gpus()
        curve = _read_curve(args.curve) if args.curve else _default_curve(args.peak, args.steps)
    except (LedgerError, OSError, ValueError) as error:
        print(f"gpumem-standin: {error}", file=sys.stderr)
        return 2
    if args.save_s is not None:
        signal.signal(signal.SIGTERM, lambda number, frame: _save(args.save_s))
    _become_mps_client()
    shards = os.environ.get("SLURM_SHARDS_ON_NODE", "") if args.within_share else ""
    job = os.environ.get("SLURM_JOB_ID", "none")
    train(gpus, curve, args.seconds, job, args.name, args.sm, int(shards) * _SHARD_MIB if shards else None)
    return 0


def _become_mps_client() -> None:
    """As the CUDA driver does: load the library that is named; fail when the MPS server says so."""
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        signal.signal(signal.SIGUSR2, _terminated)
    if "CUDA_INJECTION64_PATH" in os.environ:
        ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection()


def _save(seconds: float) -> None:
    """As a script that writes a checkpoint when it is told to end."""
    print("saving", flush=True)
    time.sleep(seconds)
    print("saved", flush=True)
    sys.exit(143)


def _terminated(number: int, frame: object) -> None:
    raise RuntimeError("CUDA error: the MPS client has been terminated by the server")


def train(
    gpus: List[LedgerGpu],
    curve: List[int],
    seconds: float,
    job: str,
    name: str,
    sm: Optional[float] = None,
    most_mib: Optional[int] = None,
) -> None:
    """Hold `curve[i]` MiB on each GPU in step i, for `seconds` in total; fail above `most_mib`."""
    where = ", ".join(f"cuda:{index} = {gpu.node} gpu{gpu.index}" for index, gpu in enumerate(gpus))
    print(f"training {name} on {where} (stand-in GPU)", flush=True)
    held = 0
    try:
        for step, mib in enumerate(curve, start=1):
            for index, gpu in enumerate(gpus):
                if most_mib is not None and mib > most_mib:
                    full = GpuIsFull(most_mib - held, most_mib, ())
                    raise OutOfMemoryError(oom_message(index, mib - held, held, full))
                _allocate(gpu, index, held, mib, job, sm)
            held = mib
            loss = 7.0 * math.exp(-3.0 * step / len(curve)) + 0.4
            print(f"step {step}/{len(curve)} loss {loss:.3f} memory {mib} MiB", flush=True)
            time.sleep(seconds / len(curve))
    finally:
        for gpu in gpus:
            gpu.release()
    print(f"done: peak memory {max(curve)} MiB", flush=True)


def oom_message(index: int, tried_mib: int, held_mib: int, full: GpuIsFull) -> str:
    """PyTorch's own message (2.13) for a GPU that is full."""
    others = "".join(f"Process {pid} has {_size(mib)} memory in use. " for pid, mib in full.others)
    return (
        f"CUDA out of memory. Tried to allocate {_size(tried_mib)}. "
        f"GPU {index} has a total capacity of {_size(full.capacity_mib)} "
        f"of which {_size(full.free_mib)} is free. "
        f"{others}Including non-PyTorch memory, this process has {_size(held_mib)} memory in use. "
        f"Of the allocated memory {_size(held_mib)} is allocated by PyTorch, "
        f"and {_size(0)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _allocate(gpu: LedgerGpu, index: int, held_mib: int, mib: int, job: str, sm: Optional[float]) -> None:
    try:
        gpu.hold(mib, job, sm)
    except GpuIsFull as full:
        raise OutOfMemoryError(oom_message(index, mib - held_mib, held_mib, full)) from None


def _visible_gpus() -> List[LedgerGpu]:
    try:
        folder = Path(os.environ["GPUMEM_DEVCLUSTER"]) / "ledger"
        node = os.environ["SLURMD_NODENAME"]
        visible = os.environ["CUDA_VISIBLE_DEVICES"]
    except KeyError as missing:
        raise LedgerError(
            f"{missing.args[0]} is not set: run this inside a job that asked for a GPU, "
            'after eval "$(gpumem devcluster env)"'
        ) from None
    return [LedgerGpu(folder, node, _number(name)) for name in visible.split(",") if name]


def _number(name: str) -> int:
    """A GPU's number: CUDA accepts indexes and UUIDs, and a stand-in's UUID ends in its index."""
    return int(name.rpartition("-")[2], 16) if name.startswith(("GPU-", "MIG-")) else int(name)


def _default_curve(peak: int, steps: int) -> List[int]:
    """The typical memory of a training job: context, model, then full from the first backward pass on."""
    start = [round(peak * _CONTEXT_SHARE), round(peak * _WEIGHTS_SHARE)]
    return [*start, *[peak] * max(1, steps - len(start))]


def _read_curve(path: Path) -> List[int]:
    """One number of MiB per line; blank lines and # comments are skipped."""
    curve = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        value = line.split("#", 1)[0].strip()
        if value:
            if not value.isdecimal():
                raise ValueError(f"{path}, line {number}: {value!r} is not a number of MiB")
            curve.append(int(value))
    if not curve:
        raise ValueError(f"{path}: holds no memory curve")
    return curve


def _size(mib: int) -> str:
    """A size in PyTorch's format."""
    if mib == 0:
        return "0 bytes"
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.2f} MiB"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def _part(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a part of 1, like 0.6")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem-standin", description=__doc__)
    memory = parser.add_mutually_exclusive_group(required=True)
    memory.add_argument("--peak", type=_positive, metavar="MIB", help="peak GPU memory in MiB")
    memory.add_argument(
        "--curve", type=Path, metavar="FILE", help="file with the MiB of each step, one per line"
    )
    parser.add_argument("--steps", type=_positive, default=10, help="number of training steps (default 10)")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of all steps (default 2)")
    parser.add_argument("--sm", type=_part, metavar="PART", help="its SM activity, from 0 to 1")
    parser.add_argument(
        "--within-share", action="store_true", help="fail at the memory of its shards, as under MPS"
    )
    parser.add_argument("--save-s", type=float, metavar="S", help="at SIGTERM save for this long, then end")
    parser.add_argument("--name", default="model", help="name of the model, for the log")
    return parser


if __name__ == "__main__":
    sys.exit(main())
