"""A PyTorch training job that grows: its batch doubles until it holds a given size, then it trains on.

It catches nothing: when the GPU's memory, or its share of it, is too small, it dies as any script does.
With --standin it plays the same on a machine without a GPU, at the limit that the task prolog gave it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Dict


class OutOfMemoryError(RuntimeError):
    """As torch raises it; for rehearsals."""


OutOfMemoryError.__module__ = "torch"


class OnGpu:
    """A small network and a tensor that grows beside it."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)
        ).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.ballast: Any = []

    def step(self) -> None:
        data = self.torch.randn(256, 2048, device="cuda")
        loss = self.model(data).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.torch.cuda.synchronize()

    def grow(self, mib: int) -> None:
        self.ballast.append(self.torch.empty(mib * 2**20, dtype=self.torch.uint8, device="cuda"))

    def held_mib(self) -> float:
        return float(self.torch.cuda.memory_reserved()) / 2**20


class OnPaper:
    """The same without a GPU: only the limit counts."""

    def __init__(self) -> None:
        limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").rpartition("=")[2].rstrip("M")
        self.limit = int(limit) if limit.isdigit() else 1 << 20
        self.held = 512

    def step(self) -> None:
        time.sleep(0.02)

    def grow(self, mib: int) -> None:
        if self.held + mib > self.limit:
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mib:.2f} MiB. GPU 0 has a total capacity of "
                f"{self.limit / 1024:.2f} GiB of which {self.limit - self.held:.2f} MiB is free. Including "
                f"non-PyTorch memory, this process has {self.held / 1024:.2f} GiB memory in use."
            )
        self.held += mib

    def held_mib(self) -> float:
        return float(self.held)


def main() -> None:
    """Train, grow, train on until the time is over or the sign is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="where the result goes, without its ending")
    parser.add_argument("--grow-to", type=int, default=0, metavar="MIB")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long it trains after growing")
    parser.add_argument("--stop", type=Path, help="ends when this file is there")
    parser.add_argument("--standin", action="store_true")
    args = parser.parse_args()
    attempt = os.environ.get("GPUMEM_ATTEMPT", "")
    out = Path(f"{args.out}.{attempt or 1}.json")
    result: Dict[str, Any] = {
        "attempt": attempt,
        "began": time.time(),
        "limit": os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        "pipe": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
        "shards": os.environ.get("SLURM_SHARDS_ON_NODE"),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "steps": [],
    }
    part: Any = OnPaper() if args.standin else OnGpu()
    print(f"attempt {attempt}: ready", flush=True)
    for _ in range(20):
        part.step()
        result["steps"].append(time.time())
    size = 256
    while part.held_mib() < args.grow_to:
        # Written before each growth: it may be the last word.
        out.write_text(json.dumps({**result, "held_mib": part.held_mib()}))
        part.grow(size)
        part.step()
        size = min(size * 2, 1024)
        print(f"holds {part.held_mib():.0f} MiB", flush=True)
        time.sleep(0.4)  # the sampler looks every second
    deadline = time.monotonic() + args.seconds
    while time.monotonic() < deadline and not (args.stop and args.stop.exists()):
        part.step()
        result["steps"].append(time.time())
    result.update(held_mib=part.held_mib(), ended=time.time(), finished=True)
    out.write_text(json.dumps(result))
    print("finished", flush=True)


if __name__ == "__main__":
    main()
