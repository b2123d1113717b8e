"""Whole training scripts, traced as they are: each runs in processes of its own, with real files.

A script is traced when the first test asks for it.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand
from tests.support.timing import Pace

pytestmark = needs_torch

HEAD = """
import os, torch, torch.nn as nn, torch.nn.functional as F, torch.utils.checkpoint
assert os.environ["GPUMEM_TRACING"] == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
def net(): return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
def data(n): return torch.randn(n, 256), torch.randint(0, 10, (n,))
"""
SCRIPTS: Dict[str, str] = {
    "evaluates-late": """
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(150):
    x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            out = model(torch.randn(65536, 256, device=device))
            print(f"{out.mean():.3f}", out.argmax(1).tolist()[:3])
        model.train()
        torch.save(model.state_dict(), "last.ckpt"); os.rename("log.txt", "old.txt") if step == 49 else None
""",
    "trains-only": """
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(60):
    x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "ends-with-evaluation": """
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(5):
    x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad(): model(torch.randn(65536, 256).to(device)).argmax(1).cpu()
""",
    "varied": """
class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        number = 0
        while True:
            number += 1; yield torch.randn(number, 256)
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for x in torch.utils.data.DataLoader(Rows(), batch_size=None):
    optimizer.zero_grad(); model(x.to(device)).sum().backward(); optimizer.step()
model.eval()
with torch.no_grad(): model(torch.randn(65536, 256, device=device))
""",
    "largest-at-its-end": """
model = net().to(device); optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(64, 256).to(device)
for epoch in range(100):
    model.train(); optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    model.eval()
    with torch.no_grad(): model(x)
    torch.save(model.state_dict(), "last.ckpt")
assert len(torch.load("last.ckpt")) == 4
with torch.no_grad(): model(torch.randn(65536, 256, device=device))
""",
    "slow-at-its-end": """
model = net().to(device); optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(64, 256).to(device)
for epoch in range(20):
    model.train(); optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    model.eval()
    with torch.no_grad(): model(x)
while True: pass
""",
    "one-by-one": """
class Endless(torch.utils.data.Sampler):
    def __init__(self): pass
    def __iter__(self):
        while True: yield 7
    def __len__(self): return 2**31
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(64)), 16, sampler=Endless())
batches = iter(loader)
def moved():  # a generator that is asked for as many as there are
    for x, y in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(1280)), 16):
        yield x.to(device), y.to(device)
counted = moved()
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(80):
    next(batches); x, y = next(counted); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad(): model(torch.randn(65536, 256, device=device))
""",
    "prefetches": """
class Prefetcher:
    def __init__(self, loader): self.batches = iter(loader); self.ask()
    def ask(self):
        try: self.batch = next(self.batches)
        except StopIteration: self.batch = None
    def next(self): batch = self.batch; self.ask(); return batch
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(1 << 20)), 16)
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
ahead = Prefetcher(loader); batch = ahead.next()
while batch is not None:
    x, y = batch; loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step(); batch = ahead.next()
model.eval()
with torch.no_grad(): model(torch.randn(65536, 256, device=device))
""",
    "distribution": """
class Policy(nn.Module):
    def __init__(self): super().__init__(); self.inner = nn.Linear(256, 1024)
    def forward(self, x): return torch.distributions.Categorical(logits=self.inner(x)), self.inner(x).mean()
model = Policy().to(device); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    rows = 8192 if step else 4096
    policy, mean = model(torch.randn(rows, 256, device=device))
    loss = mean - policy.log_prob(torch.zeros(rows, dtype=torch.long, device=device)).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); del policy, mean, loss
""",
    "gradient-penalty": """
critic = net().to(device); maker = nn.Linear(64, 256).to(device)
first = torch.optim.Adam(critic.parameters()); second = torch.optim.Adam(maker.parameters())
for step in range(60):
    x = data(64)[0].to(device).requires_grad_(); out = critic(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.mean() + gradient.pow(2).sum(1).mean()
    first.zero_grad(); loss.backward(); first.step()
    second.zero_grad(); critic(maker(torch.randn(64, 64, device=device))).mean().backward(); second.step()
critic.eval()
with torch.no_grad(): critic(torch.randn(65536, 256, device=device))
""",
    "from-the-cpu": """
codes = nn.Embedding(10, 128); model = nn.DataParallel(net())
from torch.nn.parallel.data_parallel import DataParallel as by_its_other_name
assert isinstance(model, by_its_other_name) and len(model.replicate(model.module, model.device_ids)) == 1
optimizer = torch.optim.Adam([*codes.parameters(), *model.parameters()])
for step in range(8):
    numbers = torch.arange(64) % 10; x = torch.cat([codes(numbers), torch.randn(64, 128)], 1)
    out = model(x); assert out.is_cuda and not x.is_cuda
    optimizer.zero_grad(); F.cross_entropy(out, numbers.cuda()).backward(); optimizer.step()
""",
    "boxes": """
os.makedirs("torchvision"); open("torchvision/__init__.py", "w"); open("torchvision/extension.py", "w")
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision.extension
model = nn.Linear(64, 5).to(device); optimizer = torch.optim.Adam(model.parameters())
for step in range(8):
    found = model(torch.randn(12000, 64, device=device)); boxes, scores = found[:, :4], found[:, 4]
    best = torch.ops.torchvision.nms(boxes.detach(), scores.detach(), 0.7)[:2000]
    assert len(best) == 2000 and best.is_cuda
    optimizer.zero_grad(); scores[best].sum().backward(); optimizer.step()
""",
    "scripted": """
from torch.distributed.optim import ZeroRedundancyOptimizer
@torch.jit.script
def shifted(x): return F.gelu(x) * torch.tensor(2.0)
model = net().to(device); optimizer = torch.optim.Adam(model.parameters())
for step in range(9):
    x, y = data(64); loss = F.cross_entropy(shifted(model(x.to(device))), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "slow-steps": """
import time
class Slow(torch.optim.SGD):
    def step(self, closure=None): time.sleep(1); return super().step(closure)
model = net(); optimizer = Slow(model.parameters(), 0.1); model.to(device)
for step in range(200):
    x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad(): model(torch.randn(65536, 256, device=device))
""",
    "unfreezes": """
model = nn.Sequential(nn.Linear(256, 4096), nn.Linear(4096, 4096, bias=False), nn.Linear(4096, 10)).to(device)
model[1].weight.requires_grad_(False); optimizer = torch.optim.Adam(model.parameters())
for step in range(50):
    if step == 40: model[1].weight.requires_grad_(True)
    x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "custom-backward": """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x * 2
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert x.is_cuda and g.device.type == "cuda", g.device
        return g * torch.full((), 2.0, device=x.device)
class Again(nn.Module):
    def __init__(self): super().__init__(); self.inner = net()
    def forward(self, x):
        assert x.is_cuda and torch.ones(1, device="cuda").device == x.device
        return self.inner(x)
model = Again().to(device); optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x, y = data(64)
    out = torch.utils.checkpoint.checkpoint(model, x.to(device).requires_grad_(), use_reentrant=step % 2 == 1)
    out.register_hook(lambda g: g if g.is_cuda else 1 / 0)
    loss = F.cross_entropy(Twice.apply(out), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "by-name": """
class Named(nn.Module):
    def __init__(self): super().__init__(); self.inner = net()
    def forward(self, scale, rows=None): return self.inner(rows) * scale
model = Named(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(20):
    x, y = data(48); loss = F.cross_entropy(model(scale=2.0, rows=x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "keeps-graphs": """
model = net(); optimizer = torch.optim.Adam(model.parameters()); model.to(device)
for step in range(100):
    x, y = data(4096); loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
x, y = data(4096); x = x.to(device)
print(torch.cat([model(x) for _ in range(10)]).argmax(1).float().mean().item())
""",
    "reads-gradients": """
device = torch.cuda.current_device()
model = net().to(device); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for step in range(30):
        x, y = data(64); loss = F.cross_entropy(model(x.to(device)), y.to(device=device))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        norms = [p.grad.norm().item() for p in model.parameters()]
    model.eval()
    with torch.no_grad(): out = model(torch.randn(65536, 256, device=device)).mean().item()
    model.train()
""",
    "scaler": """
import argparse; parser = argparse.ArgumentParser(); parser.add_argument("--rows", type=int)
rows = parser.parse_args().rows
model = net().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
dataset = torch.utils.data.TensorDataset(*data(640))
loader = torch.utils.data.DataLoader(dataset, rows, num_workers=2, pin_memory=True)
for epoch in range(5):
    for x, y in loader:
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda()) / 2
        scaler.scale(loss).backward()
        if torch.isnan(loss): raise SystemExit("not a number")
        scaler.unscale_(optimizer); nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
""",
    "by-hand": """
model = net().to(torch.accelerator.current_accelerator())
T = torch.cuda.FloatTensor
for step in range(50):
    loss = model(torch.randn(32, 256).type(T)).pow(2).mean(); model.zero_grad(); loss.backward()
    with torch.no_grad():
        for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)
""",
    "default-device": """
torch.set_default_device("cuda")
model = net(); opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss = model(torch.randn(4096, 256)).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
""",
    "never-trains": "model = net(); print(model(torch.randn(4, 256)).shape)",
    "asks": "input('go on? ')",
    "no-data": "open('data/train.bin').read()",
    "ends-itself": "import os; os._exit(7)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "ends-itself-later": """
try: torch.empty(1 << 50, device="cuda"); raise SystemExit("as if there were no end to memory")
except torch.cuda.OutOfMemoryError: pass
model = net().cuda(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(64, 256).cuda()).sum().backward(); optimizer.step(); os._exit(3)
""",
    "hangs": "import time; time.sleep(600)",
    "one-step": """
model = net().to(device); optimizer = torch.optim.Adam(model.parameters())
while True:
    F.cross_entropy(model(data(64)[0].to(device)), data(64)[1].to(device)).backward()
    if not optimizer.state: optimizer.step()
""",
    "collects": """
model = net().to(device); optimizer = torch.optim.Adam(model.parameters())
while True:
    with torch.no_grad(): model(torch.randn(4, 256, device=device))
""",
    "few-lengths": """
torch.manual_seed(1)
model = net().to(device); optimizer = torch.optim.AdamW(model.parameters())
for rows in (64, 96, 80, 128, 72, 112):
    x, y = data(rows)
    F.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "few-lengths-by-chance": """
model = net().to(device); optimizer = torch.optim.AdamW(model.parameters())
for rows in torch.tensor([64, 96, 80, 128, 72, 112])[torch.randperm(6)].tolist():
    x, y = data(rows)
    F.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "network": "import urllib.request; urllib.request.urlopen('http://192.0.2.1/data', timeout=5)",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dict[str, Future[TracedScript]]]:
    folder, pace = tmp_path_factory.mktemp("scripts"), Pace()
    with OnDemand() as pool:
        found = {}
        for name, text in SCRIPTS.items():
            work = folder / name
            work.mkdir()
            (work / "train.py").write_text(HEAD + text)
            (work / "last.ckpt").write_bytes(b"weights of last week")
            (work / "log.txt").write_text("kept\n")
            found[name] = pool.submit(_trace, work, name, pace)
        yield found


def _trace(work: Path, name: str, pace: Pace) -> TracedScript:
    usual = {"hangs": 30.0, "collects": 60.0, "one-step": 60.0}.get(name)
    seconds = 300.0 if usual is None else pace.limit_s(usual)
    more: List[str] = ["--rows", "64"] if name == "scaler" else []
    command = [sys.executable, "train.py", *more]
    onward = 4.0 if name == "varied" else 60.0
    return pace.run(
        lambda: trace_command(command, Limits(seconds=seconds, onward_s=onward), folder=str(work))
    )


def _error(run: Future[TracedScript]) -> str:
    with pytest.raises(TargetError) as caught:
        run.result()
    return str(caught.value)


@pytest.mark.parametrize("name", ["scaler"])
def test_a_trace_is_what_it_was(runs: Dict[str, Future[TracedScript]], name: str) -> None:
    assert_trace_kept(name, runs[name].result())


def test_a_validation_after_fifty_steps_is_seen_and_counts(runs: Dict[str, Future[TracedScript]]) -> None:
    late, plain = runs["evaluates-late"].result().facts, runs["trains-only"].result().facts
    assert {"evaluate", "checkpoint"} <= set(late["phases"])
    # 65,536 rows of 1,024 numbers and the 256 that they are made of.
    assert late["peak_bytes"] > 65536 * (1024 + 256) * 4 > plain["peak_bytes"]


def test_what_comes_after_training_on_batches_that_are_never_alike_is_seen(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    traced = runs["varied"].result()
    assert "evaluate" in traced.facts["phases"]
    assert traced.facts["peak_bytes"] > 65536 * (1024 + 256) * 4
    assert any("batches have many shapes" in line for line in read_summary(traced.summary.decode()).warnings)


def test_what_a_script_does_at_its_end_counts(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["largest-at-its-end"].result().facts
    assert facts["ended"]
    assert facts["steps"] == 100
    assert facts["peak_bytes"] > 65536 * (1024 + 256) * 4


def test_a_script_that_computes_on_the_cpu_after_training_is_not_waited_for(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    traced = runs["slow-at-its-end"].result()
    assert not traced.facts["ended"]
    assert "evaluate" in traced.facts["phases"]
    assert traced.seconds < 200, "the time limit is 300 s"


def test_a_training_of_few_batches_is_over_with_them(runs: Dict[str, Future[TracedScript]]) -> None:
    few, varied = (read_summary(runs[name].result().summary.decode()) for name in ("few-lengths", "varied"))
    assert few.trace is not None
    assert varied.trace is not None
    assert few.trace.finished
    assert not varied.trace.finished
    assert not any("batches have many shapes" in line for line in few.warnings)


def test_batches_that_come_in_another_order_each_time_are_warned_of(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    summary = read_summary(runs["few-lengths-by-chance"].result().summary.decode())
    assert summary.trace is not None
    assert summary.trace.finished
    assert any("batches have many shapes" in line for line in summary.warnings)


def test_steps_of_an_optimizer_that_show_nothing_new_are_not_run(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["slow-steps"].result().facts
    assert facts["steps"] == 200
    assert "evaluate" in facts["phases"]


def test_batches_that_are_asked_for_one_by_one_go_on_and_who_knows_the_end_of_an_epoch_gets_it(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    one_by_one, prefetches = (runs[name].result().facts for name in ("one-by-one", "prefetches"))
    assert one_by_one["steps"] == 80
    assert prefetches["steps"] < 100
    for facts in (one_by_one, prefetches):
        assert facts["peak_bytes"] > 65536 * (1024 + 256) * 4
        assert not {"failure", "onward_failure"} & set(facts)


def test_what_is_remembered_of_a_call_holds_no_memory(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["distribution"].result().facts
    assert not {"failure", "onward_failure"} & set(facts)
    assert facts["steps"] == 40
    logits = 8192 * 1024 * 4
    # Logits and their gradient, twice, and what log_prob makes of them; not those of the smaller batch.
    assert facts["peak_bytes"] < 6.4 * logits


def test_gradients_of_a_model_s_inputs_can_be_asked_for_when_it_is_not_run_any_more(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["gradient-penalty"].result().facts
    assert not {"failure", "onward_failure"} & set(facts)
    assert facts["steps"] == 120
    assert facts["peak_bytes"] > 65536 * (1024 + 256) * 4


def test_inputs_on_the_cpu_are_moved_by_data_parallel(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["from-the-cpu"].result().facts
    assert facts["steps"] == 8
    assert not {"failure", "onward_failure"} & set(facts)


def test_of_boxes_that_overlap_all_are_kept_and_their_pairs_counted(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    traced = runs["boxes"].result()
    assert traced.facts["steps"] == 8
    pairs = 12000 * (12000 // 64 + 1) * 8
    assert traced.facts["peak_bytes"] > pairs
    trace = read_summary(traced.summary.decode()).trace
    assert trace is not None
    assert any("nms keeps" in remark for remark in trace.remarks)


def test_code_that_torch_jit_compiles_runs_with_replaced_functions(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["scripted"].result().facts
    assert facts["steps"] == 9
    assert not {"failure", "onward_failure"} & set(facts)


def test_states_of_weights_that_train_only_later_are_counted(runs: Dict[str, Future[TracedScript]]) -> None:
    weight = 4096 * 4096 * 4
    assert runs["unfreezes"].result().facts["peak_bytes"] > 4 * weight  # with its gradient and two states


@pytest.mark.parametrize("name", ["evaluates-late", "trains-only", "slow-steps", "ends-with-evaluation"])
def test_the_work_of_a_step_is_that_of_one_that_ran_whole(
    runs: Dict[str, Future[TracedScript]], name: str
) -> None:
    trace = read_summary(runs[name].result().summary.decode()).trace
    assert trace is not None
    products = [one.phase for one in trace.kernels for _ in range(one.times) if one.kind == "gemm"]
    assert (products.count("forward"), products.count("backward")) == (2, 3)
    assert any(kernel.phase == "optimizer" for kernel in trace.kernels)


def test_code_that_a_backward_pass_runs_is_on_cuda(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["custom-backward"].result().facts
    assert facts["steps"] == 6
    assert not {"failure", "onward_failure"} & set(facts)


def test_a_trace_that_the_time_limit_ended_after_one_step_has_a_warning(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    warning, unfinished = read_summary(runs["one-step"].result().summary.decode()).warnings
    assert "the trace ended before the script did" in unfinished
    assert "with the optimizer's states" in warning
    assert not read_summary(runs["trains-only"].result().summary.decode()).warnings


def test_many_steps_take_the_room_of_a_few(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["trains-only"].result().facts
    assert facts["cycles"] == facts["steps"] == 60
    assert facts["events"] < 10 * facts["cycles"]
    assert facts["grown_bytes"] == 0


def test_passes_whose_graphs_are_all_kept_after_training_are_all_counted(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["keeps-graphs"].result().facts
    one_pass = 4096 * 1024 * 4
    assert facts["peak_bytes"] > 10 * one_pass


def test_gradients_that_are_read_after_each_step_and_a_gpu_by_its_number_are_served(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["reads-gradients"].result().facts
    assert "onward_failure" not in facts
    assert facts["peak_bytes"] > 65536 * (1024 + 256) * 4


def test_an_optimizer_made_before_the_model_moved_has_its_parameters(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    # Weights, gradients and two states of Adam, all on the GPU.
    weights = 4 * (256 * 1024 + 1024 + 1024 * 10 + 10)
    assert runs["trains-only"].result().facts["peak_bytes"] > 4 * weights


def test_files_of_the_user_are_byte_identical_after_a_trace(
    runs: Dict[str, Future[TracedScript]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    traced = runs["evaluates-late"].result()
    work = next(tmp_path_factory.getbasetemp().glob("scripts*/evaluates-late"))
    assert traced.private["files"] in ("overlay", "landlock")
    assert (work / "last.ckpt").read_bytes() == b"weights of last week"
    assert (work / "log.txt").read_text() == "kept\n"
    assert not (work / "old.txt").exists()


def test_a_gradient_scaler_loaders_and_arguments_are_served(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["scaler"].result().facts
    assert facts["optimizers"] == ["SGD"]
    assert facts["steps"] >= 3


def test_a_model_called_with_arguments_by_name_has_the_batch_of_its_tensors(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    summary = read_summary(runs["by-name"].result().summary.decode())
    assert summary.trace is not None
    assert (summary.batch, summary.trace.job.batch, summary.input_shapes) == (48, 48, ((48, 256),))


def test_layers_made_under_a_default_device_are_on_it(runs: Dict[str, Future[TracedScript]]) -> None:
    # The hidden layer's output, its activation and the gradient of one of them.
    assert runs["default-device"].result().facts["peak_bytes"] > 2 * 4096 * 1024 * 4


def test_weights_changed_by_hand_are_training_too(runs: Dict[str, Future[TracedScript]]) -> None:
    assert runs["by-hand"].result().facts["cycles"] >= 3


def test_a_script_that_runs_out_of_memory_and_ends_hard_is_traced(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    assert runs["ends-itself-later"].result().facts["steps"] == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("never-trains", ["without a step of an optimizer or a forward pass", "Sequential"]),
        ("asks", ["EOFError", "train.py, line", "nobody answers"]),
        ("no-data", ["FileNotFoundError", "Prepare its data first"]),
        ("ends-itself", ["code 7"]),
        ("crashes", ["ended by SIGSEGV"]),
        ("hangs", ["stopped after ", "time.sleep", "--time-limit"]),
        (
            "collects",
            ["forward passes, before any optimizer step", "let it collect less first", "--time-limit"],
        ),
        ("network", ["Network access is disabled"]),
    ],
)
def test_what_cannot_be_traced_says_where_and_what_to_do(
    runs: Dict[str, Future[TracedScript]], name: str, words: List[str]
) -> None:
    message = _error(runs[name])
    assert [word for word in words if word not in message] == []
