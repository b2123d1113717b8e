"""Train one rank for a few steps: started by `measure`, one process for each row.

FSDP and tensor parallel run in a group of PyTorch's "fake" backend: shards, gathers and buffers are those of
N ranks, and the collectives do nothing. DDP's buckets are the same for every number of ranks, so it runs in a
group of one with NCCL, whose own memory PyTorch does not count. The values computed are meaningless; the
memory is not.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

STEPS = 5


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        rows, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind()
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(rows, length, -1))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class Model(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, width: int, depth: int, words: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of every next word."""
        x: torch.Tensor = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        return x


def built(run: Dict[str, Any], device: str) -> nn.Module:
    """The model on a device, in the precision of the run."""
    with torch.device(device):
        model = Model(run["width"], run["depth"], run["words"])
    return model.bfloat16() if run["precision"] == "bf16" else model


def step(model: Any, ids: torch.Tensor, optimizer: Any, precision: str, device: str = "cuda") -> None:
    """One step; gradients live through the forward pass, as in many scripts."""
    with torch.autocast(device, torch.bfloat16, enabled=precision == "amp-bf16"):
        scores = model(ids)
        loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(run: Dict[str, Any], device: str) -> None:
    """A few steps of the run's rank."""
    _group(run, device)
    model = _wrapped(run, device)
    # One group would mix whole and divided parameters, which PyTorch refuses.
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    divided = [p for p in model.parameters() if isinstance(p, DTensor)]
    groups = [{"params": some} for some in (whole, divided) if some]
    optimizer = torch.optim.AdamW(groups, lr=1e-5, foreach=True)
    for _ in range(STEPS):
        ids = torch.zeros(run["batch"], run["length"], dtype=torch.int64, device=device)
        step(model, ids, optimizer, run["precision"], device)
    if device == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group()


def _group(run: Dict[str, Any], device: str) -> None:
    if run["strategy"].startswith("ddp"):
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=run["ranks"], store=FakeStore())


def _wrapped(run: Dict[str, Any], device: str) -> Any:
    name, *words = run["strategy"].split(",")
    if name == "ddp":
        views = "gradient_as_bucket_view" in words
        return nn.parallel.DistributedDataParallel(built(run, device), gradient_as_bucket_view=views)
    if name.startswith("fsdp1"):
        return _fsdp1(run, device)
    if name == "tp":
        return _tensor_parallel(run, device)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    how: Dict[str, Any] = {"mesh": init_device_mesh(device, (run["ranks"],))}
    if name.endswith("grad-op"):
        how["reshard_after_forward"] = False
    if "mixed" in words:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    precision = "fp32" if "mixed" in words else run["precision"]
    model: Any = built({**run, "precision": precision}, "meta")
    for block in model.blocks:
        fully_shard(block, **how)
    how.pop("reshard_after_forward", None)
    fully_shard(model, **how)
    return model.to_empty(device=device)


def _tensor_parallel(run: Dict[str, Any], device: str) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device, (run["ranks"],))
    model: Any = built(run, "meta")
    for block in model.blocks:
        plan = {"qkv": ColwiseParallel(), "proj": RowwiseParallel()}
        parallelize_module(block, mesh, {**plan, "up": ColwiseParallel(), "down": RowwiseParallel()})
        block.heads //= run["ranks"]
    return model.to_empty(device=device)


def _fsdp1(run: Dict[str, Any], device: str) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    part = run["strategy"].startswith("fsdp1-grad-op")
    return FSDP(
        built(run, "meta"),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP if part else ShardingStrategy.FULL_SHARD,
        device_id=torch.device(device, 0) if device == "cuda" else torch.device(device),
        param_init_fn=_emptied(device),
    )


def _emptied(device: str) -> Callable[[nn.Module], None]:
    def empty(module: nn.Module) -> None:
        module.to_empty(device=torch.device(device), recurse=False)

    return empty
