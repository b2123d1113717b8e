"""One rank of a real training on the CPU: writes what it holds, and the most that it held.

`python one_rank.py gloo RANK RANKS FOLDER STRATEGY ...` trains beside other processes;
`python one_rank.py fake RANK RANKS FOLDER STRATEGY ...` in a group whose other ranks do not exist and whose
collectives do nothing, so that no library's buffers are counted.
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
    """Blocks between two layers of odd sizes, which no number of ranks divides."""

    def __init__(self, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.first = nn.Linear(101, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last = nn.Linear(width, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def build() -> nn.Module:
    return Model()


def wrapped(model: Any, strategy: str, ranks: int) -> Any:
    name, *words = strategy.split(",")
    if name == "ddp":
        views = "gradient_as_bucket_view" in words
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=views)
    if name.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        kind = ShardingStrategy.SHARD_GRAD_OP if name.endswith("op") else ShardingStrategy.FULL_SHARD
        policy = ModuleWrapPolicy({Block})
        return FSDP(model, auto_wrap_policy=policy, sharding_strategy=kind, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    reshard: Dict[str, Any] = {"reshard_after_forward": False} if name.endswith("op") else {}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **reshard)
    return fully_shard(model, mesh=mesh)


def held(tensors: List[Any]) -> int:
    """Bytes of the storages behind tensors, each once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in local if t.dim()}
    return sum(storages.values())


def main(backend: str, rank: int, ranks: int, folder: Path, strategies: List[str]) -> None:
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    else:
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    found = {strategy: trained(strategy, ranks) for strategy in strategies}
    (folder / f"{backend}-{ranks}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def trained(strategy: str, ranks: int) -> Dict[str, int]:
    """Three steps under one strategy."""
    torch.manual_seed(0)
    model = wrapped(build(), strategy, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    found: Dict[str, int] = {}

    def step() -> None:
        x = torch.zeros(ROWS, 101)
        loss = nn.functional.mse_loss(model(x), torch.zeros(ROWS, 37))
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
    buckets = found["gradients"] if strategy.startswith("ddp") else 0
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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
