"""Scripts that start several ranks: rank 0 is traced, and what each holds equals what real ranks hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.estimators.ranks.strategy import parse_strategy
from slurm_gpumem.summaries.own import parse
from slurm_gpumem.summaries.trace_types import BUCKET
from slurm_gpumem.tracing.script.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.estimators.ranks.rank_figures import of_rank
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

MODEL = """
import functools, json, os, sys, torch, torch.distributed as dist
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
SHARDED = """
from torch.distributed.fsdp import (FullyShardedDataParallel as FSDP, MixedPrecision, MixedPrecisionPolicy,
                                    ShardingStrategy, fully_shard)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
dist.init_process_group("nccl" if gpu else "gloo")
blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
types = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
if kind.startswith("fsdp1"):
    more = dict(mixed_precision=MixedPrecision(**types)) if kind == "fsdp1-half" else {}
    model = FSDP(model, auto_wrap_policy=blocks, device_id=device, **more)
elif kind == "grad-op":
    model = FSDP(model.to(device), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=device)
else:
    more = dict(mp_policy=MixedPrecisionPolicy(**types)) if kind == "fsdp2-half" else {}
    for block in model.blocks:
        fully_shard(block, **more)
    fully_shard(model, **more).set_requires_gradient_sync(True)
optimizer = train(model)
def held(tensors):
    whole = [getattr(one, "to_local", lambda: one)() for one in tensors if one is not None]
    return sum(one.numel() * one.element_size() for one in whole)
parameters = list(model.parameters())
states = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
found = [held(parameters), held(one.grad for one in parameters), held(states)]
if dist.get_rank() == 0:
    open(sys.argv[2], "w").write(json.dumps(found))
"""
KINDS = {
    "fsdp1": "fsdp1,wrap=Block",
    "fsdp1-half": "fsdp1,mixed=yes,reduce=fp32,wrap=Block",
    "grad-op": "fsdp1-grad-op,whole=yes,wrap=none",
    "fsdp2": "fsdp,wrap=Block",
    "fsdp2-half": "fsdp,mixed=yes,reduce=fp32,wrap=Block",
}
TORCHRUN = ("-m", "torch.distributed.run")
OTHERS = {
    # Its own processes, of which two wait in init_process_group; gathered values are this rank's.
    "spawned": """
import torch.multiprocessing as processes
def worker(rank, world):
    dist.init_process_group("nccl", "tcp://127.0.0.1:1", rank=rank, world_size=world)
    assert dist.get_world_size() == 3 and torch.cuda.device_count() == 3
    wrapped = nn.parallel.DistributedDataParallel(Net().to(device), device_ids=[rank])
    stop = torch.tensor([0], device=device); dist.broadcast(stop, src=0); dist.all_reduce(stop)
    assert stop.item() == 0
    names = [None] * world; dist.all_gather_object(names, {"rank": rank}); assert names[2] == {"rank": 0}
    out = [torch.zeros(4, device=device) for _ in range(world)]
    dist.all_gather(out, torch.ones(4).to(device))
    train(wrapped)
if __name__ == "__main__":
    processes.spawn(worker, args=(3,), nprocs=3)
""",
    "zero": """
import deepspeed
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                               config="ds.json")
assert engine.train_micro_batch_size_per_gpu() == 4
for step in range(8):
    loss = engine(torch.randn(4, 32).to(engine.device)).float().square().mean()
    engine.backward(loss); engine.step()
""",
    "pipeline": """
from torch.distributed.pipelining import PipelineStage
dist.init_process_group("nccl"); train(model.to(device))
PipelineStage(model, 0, 2, device)
""",
    "two-ways": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
dist.init_process_group("nccl")
train(fully_shard(parallelize_module(model.to(device))))
""",
    "one-process": "train(nn.DataParallel(model.to(device)))\n",
}
DEEPSPEED = "class zero: pass\ndef initialize(**options): raise RuntimeError('needs a GPU')\n"
SETTINGS = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 50000, "overlap_comm": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks")
    (found / "sharded.py").write_text(MODEL + SHARDED)
    for name, code in OTHERS.items():
        (found / f"{name}.py").write_text(MODEL + code)
    (found / "deepspeed").mkdir()
    (found / "deepspeed" / "__init__.py").write_text(DEEPSPEED)
    (found / "ds.json").write_text(json.dumps(SETTINGS))
    return found


@pytest.fixture(scope="module")
def traced(folder: Path) -> Iterator[Dict[str, Future[TracedScript]]]:
    def trace(*words: str, gpus: int = 1) -> TracedScript:
        limits = Limits(seconds=400, onward_s=1)
        return trace_command([sys.executable, *words], limits, gpu=GpuFacts(gpus=gpus), folder=str(folder))

    with OnDemand() as pool:
        found = {
            kind: pool.submit(trace, *TORCHRUN, "--nproc-per-node=2", "sharded.py", kind, "none.json")
            for kind in KINDS
        }
        found["spawned"] = pool.submit(trace, "spawned.py", gpus=3)
        found["zero"] = pool.submit(trace, *TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "zero.py")
        found["pipeline"] = pool.submit(trace, *TORCHRUN, "--nproc-per-node=2", "pipeline.py")
        found["two-ways"] = pool.submit(trace, *TORCHRUN, "--nproc-per-node=2", "two-ways.py")
        found["one-process"] = pool.submit(trace, "one-process.py", gpus=4)
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_script_under_torchrun_is_computed_to_the_bytes_that_two_real_ranks_hold(
    folder: Path, traced: Dict[str, Future[TracedScript]], kind: str
) -> None:
    real = folder / f"{kind}.json"
    run = [sys.executable, *TORCHRUN, "--standalone", "--nproc-per-node=2", "sharded.py", kind, str(real)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = traced[kind].result()
    summary = parse(found.summary.decode(), origin="test")
    assert summary.trace is not None
    job = summary.trace.job
    assert (found.ranks, job.ranks, job.strategy) == (2, 2, KINDS[kind])
    computed = of_rank(summary, job.strategy, 2)
    assert [computed["weights"], computed["gradients"], computed["optimizer"]] == json.loads(real.read_text())


def test_a_script_that_spawns_its_ranks_is_traced_as_the_first_with_its_buckets(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    found = traced["spawned"].result()
    summary = parse(found.summary.decode(), origin="test")
    assert summary.trace is not None
    assert (found.ranks, summary.trace.job.ranks, summary.trace.job.strategy) == (3, 3, "ddp")
    held = of_rank(summary, "ddp", 3)
    assert held["buckets"] == held["gradients"] == held["weights"]
    sizes = [site.bytes[0] for _, _, site in summary.trace.allocations() if site and site.operator == BUCKET]
    assert sizes[0] == sum(sizes[1:]) == held["weights"]  # one for all, until the second pass


def test_deepspeeds_configuration_gives_the_stage_its_options_and_the_batch_of_one_of_four_ranks(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    found = traced["zero"].result()
    summary = parse(found.summary.decode(), origin="test")
    assert summary.trace is not None
    job = summary.trace.job
    assert (job.ranks, job.batch, job.precision, job.optimizer) == (4, 4, "bf16", "adamw")
    strategy = parse_strategy(job.strategy)
    assert (strategy.name, strategy.number("reduce_bucket_size")) == ("zero2", 50000)
    assert strategy.switch("overlap_comm")
    held = of_rank(summary, job.strategy, 4)
    elements = summary.total_params or 0
    assert held["weights"] == 2 * elements
    # Two states and the copy of a quarter of the weights, in fp32.
    assert held["optimizer"] == pytest.approx(3 * 4 * elements / 4, rel=0.01)


@pytest.mark.parametrize(
    ("name", "words"),
    [("pipeline", "the stages of a pipeline"), ("two-ways", "in several ways (tp, fsdp)")],
)
def test_what_a_trace_cannot_divide_is_one_message(
    traced: Dict[str, Future[TracedScript]], name: str, words: str
) -> None:
    with pytest.raises(TargetError) as caught:
        traced[name].result()
    assert words in str(caught.value)
    assert "2 ranks" in str(caught.value)


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
