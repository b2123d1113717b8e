"""One rank of a real training under DDP on the CPU: writes what it holds, and the most that it held.

`python ddp_rank.py RANK RANKS FOLDER` trains beside the other processes, by gloo.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from torch import nn

WIDTH, DEPTH, ROWS = 384, 6, 96


class Block(nn.Module):
    """Two products that widen and come back, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Blocks between two layers of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(101, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))
        self.last = nn.Linear(WIDTH, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def held(tensors: List[Any]) -> int:
    """Bytes of the storages behind tensors, each once."""
    whole = [t for t in tensors if isinstance(t, torch.Tensor) and t.dim()]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in whole}.values())


def main(rank: int, ranks: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    (folder / f"{rank}.json").write_text(json.dumps(trained()))
    dist.barrier()
    dist.destroy_process_group()


def trained() -> Dict[str, int]:
    """Three steps."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    found: Dict[str, int] = {}

    def step() -> None:
        loss = nn.functional.mse_loss(model(torch.zeros(ROWS, 101)), torch.zeros(ROWS, 37))
        loss.backward()
        found["gradients"] = held([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()

    step()
    found["weights"] = held(list(model.parameters()))
    found["optimizer"] = held([s for state in optimizer.state.values() for s in state.values()])
    step()
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    buckets = found["gradients"]
    found["peak"] = found["weights"] + found["optimizer"] + buckets + peak(profile)
    return found


def peak(profile: Any) -> int:
    """The most that was allocated at a time in one step, above what lived before it."""
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
