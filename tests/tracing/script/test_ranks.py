"""Scripts that start several ranks: rank 0 is traced; those that shard their model are not estimated."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator

import pytest

from slurm_gpumem.errors import NotEstimatedError
from slurm_gpumem.estimators.traced.changes import rank_trace
from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.summaries.trace_types import BUCKET
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.estimators.rank_figures import figures
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

MODEL = """
import os, sys, torch, torch.distributed as dist
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__(); self.up = nn.Linear(width, 4 * width); self.down = nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 130); self.blocks = nn.ModuleList(Block(130) for _ in range(3))
        self.last = nn.Linear(130, 10)
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)
kind = sys.argv[1] if len(sys.argv) > 1 else ""
gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
torch.manual_seed(0)
model = Net()
def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32).to(device)).float().square().mean()
        loss.backward(); optimizer.step()
    return optimizer
"""
TORCHRUN = ("-m", "torch.distributed.run")
OTHERS = {
    # Its own processes, of which one waits in init_process_group; gathered values are this rank's.
    "spawned": """
import torch.multiprocessing as processes
def worker(rank, world):
    dist.init_process_group("nccl", "tcp://127.0.0.1:1", rank=rank, world_size=world)
    assert dist.get_world_size() == 2 and torch.cuda.device_count() == 2
    wrapped = nn.parallel.DistributedDataParallel(Net().to(device), device_ids=[rank])
    stop = torch.tensor([0], device=device); dist.broadcast(stop, src=0); dist.all_reduce(stop)
    assert stop.item() == 0
    names = [None] * world; dist.all_gather_object(names, {"rank": rank}); assert names[1] == {"rank": 0}
    out = [torch.zeros(4, device=device) for _ in range(world)]
    dist.all_gather(out, torch.ones(4).to(device))
    train(wrapped)
if __name__ == "__main__":
    processes.spawn(worker, args=(2,), nprocs=2)
""",
    "views": """
dist.init_process_group("nccl")
train(nn.parallel.DistributedDataParallel(model.to(device), gradient_as_bucket_view=True))
""",
    "one-process": "train(nn.DataParallel(model.to(device)))\n",
}
SHARDED = {
    "fsdp1": ("FSDP", """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
dist.init_process_group("nccl"); train(FSDP(model, device_id=device))
"""),
    "fsdp2": ("FSDP", """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
for block in model.blocks: fully_shard(block)
train(fully_shard(model))
"""),
    "tensor-parallel": ("tensor parallelism", """
from torch.distributed.tensor.parallel import parallelize_module
dist.init_process_group("nccl"); train(parallelize_module(model.to(device)))
"""),
    "pipeline": ("a pipeline", """
from torch.distributed.pipelining import PipelineStage
dist.init_process_group("nccl"); train(model.to(device)); PipelineStage(model, 0, 2, device)
"""),
    "redundancy": ("ZeroRedundancyOptimizer", """
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("nccl")
train(model.to(device), ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4))
"""),
    "deepspeed": ("DeepSpeed", """
import deepspeed
deepspeed.initialize(model=model, model_parameters=model.parameters(), config="ds.json")
"""),
}  # fmt: skip
"""How each shards its model, for people, and its code."""
DEEPSPEED = "class zero: pass\ndef initialize(**options): raise RuntimeError('needs a GPU')\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks")
    for name, code in [*OTHERS.items(), *((name, code) for name, (_, code) in SHARDED.items())]:
        (found / f"{name}.py").write_text(MODEL + code)
    (found / "deepspeed").mkdir()
    (found / "deepspeed" / "__init__.py").write_text(DEEPSPEED)
    return found


@pytest.fixture(scope="module")
def traced(folder: Path) -> Iterator[Dict[str, Future[TracedScript]]]:
    def trace(*words: str, gpus: int = 1) -> TracedScript:
        limits = Limits(seconds=400, onward_s=60)
        return trace_command([sys.executable, *words], limits, gpu=GpuFacts(gpus=gpus), folder=str(folder))

    with OnDemand() as pool:
        found = {
            name: pool.submit(trace, *TORCHRUN, "--nproc-per-node=2", f"{name}.py")
            for name in (*SHARDED, "views")
        }
        found["alone"] = pool.submit(trace, *TORCHRUN, "--nproc-per-node=1", "fsdp1.py")
        found["spawned"] = pool.submit(trace, "spawned.py", gpus=2)
        found["one-process"] = pool.submit(trace, "one-process.py", gpus=4)
        yield found


def test_a_script_that_spawns_its_ranks_is_traced_as_the_first_with_its_buckets(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    found = traced["spawned"].result()
    assert_trace_kept("spawned", found)
    summary = parse(found.summary.decode(), origin="test")
    assert summary.trace is not None
    assert (found.ranks, summary.trace.job.ranks) == (2, 2)
    trace, _ = rank_trace(summary.trace, 2)
    held = figures(trace)
    assert held["buckets"] == held["gradients"] == held["weights"]
    sizes = [site.bytes[0] for _, _, site in trace.allocations() if site and site.operator == BUCKET]
    assert sizes[0] == sum(sizes[1:]) == held["weights"]  # one for all, until the second pass


def test_no_buckets_are_added_where_a_script_s_gradients_are_views_of_them(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    summary = parse(traced["views"].result().summary.decode(), origin="test")
    assert summary.trace is not None
    held = figures(rank_trace(summary.trace, 2)[0])
    assert (held["buckets"], held["gradients"]) == (0, held["weights"])


@pytest.mark.parametrize("name", [*SHARDED, "alone"])
def test_a_script_that_shards_its_model_is_not_estimated_on_any_number_of_gpus(
    traced: Dict[str, Future[TracedScript]], name: str
) -> None:
    by = SHARDED.get(name, SHARDED["fsdp1"])[0]
    with pytest.raises(NotEstimatedError) as caught:
        traced[name].result()
    said = f"it shards its model over GPUs ({by}): its peak is not estimated; it keeps whole GPUs"
    assert str(caught.value).endswith(said)


def test_data_parallel_is_traced_as_its_first_gpu_with_its_part_of_the_batch(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    found = traced["one-process"].result()
    assert found.ranks == 4
    assert any("DataParallel on 4 GPUs" in note for note in found.notes)
    summary = parse(found.summary.decode(), origin="test")
    assert summary.trace is not None
    up = 4 * 4 * 130 * 4
    sizes = {site.bytes_at(16) for site in summary.trace.sites if site.category == "activations"}
    assert up in sizes
    assert 4 * up not in sizes


def test_a_rank_in_the_environment_of_whoever_traces_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(4): model(torch.randn(8, 64).cuda()).sum().backward(); optimizer.step()\n"
    )
    environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "1"}
    traced = trace_command(
        [sys.executable, "train.py"],
        Limits(120.0, onward_s=1.0),
        environment=environment,
        folder=str(tmp_path),
    )
    assert traced.facts["kind"] == "training"
