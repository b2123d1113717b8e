"""Scripts whose training changes on the way: what comes later is seen, and what is gone is not counted."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Dict, Iterator

import pytest

from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"
SCRIPTS: Dict[str, str] = {
    # Frozen weights that are trained later: the same model, the same inputs, and more that is kept.
    "unfreezes": """
blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8)]
model = nn.Sequential(*blocks, nn.Linear(256, 10)).cuda()
for parameter in model[:8].parameters(): parameter.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    if epoch == 3:
        for parameter in model.parameters(): parameter.requires_grad = True
    for step in range(12):
        loss = model(torch.randn(4096, 256, device="cuda")).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # A network that grows by an attribute: its input is the same at every stage.
    "grows": """
class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = 1; self.layers = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(5)])
    def forward(self, x):
        for layer in self.layers[:self.depth]: x = F.interpolate(F.relu(layer(x)), scale_factor=2)
        return x
model = Growing().cuda(); optimizer = torch.optim.Adam(model.parameters())
for model.depth in range(1, 6):
    for step in range(12):
        out = model(torch.randn(16, 16, 4, 4, device="cuda")); assert out.shape[-1] == 4 * 2 ** model.depth
        optimizer.zero_grad(); out.pow(2).mean().backward(); optimizer.step()
""",
    # Batches are objects; one after the other has the address of the one before it.
    "objects": """
class Graph:
    def __init__(self, nodes): self.x = torch.randn(nodes, 64, device="cuda")
class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(64, 256)
    def forward(self, graph): return self.layer(graph.x)
model = Net().cuda(); optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    loss = model(Graph(512)).pow(2).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad():
    for nodes in [512] * 8 + [1 << 18]: assert len(model(Graph(nodes))) == nodes
""",
    # Derivatives of derivatives, and weights that are changed by hand.
    "second-derivatives": """
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
x = torch.rand(1000, 2, device="cuda", requires_grad=True)
def loss():
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return torch.autograd.grad(slope.sum(), x, create_graph=True)[0].pow(2).mean()
first = torch.optim.Adam(model.parameters()); second = torch.optim.LBFGS(model.parameters(), max_iter=3)
for step in range(20): first.zero_grad(); loss().backward(); first.step()
def closure(): second.zero_grad(); now = loss(); now.backward(); return now
for step in range(3): second.step(closure)
""",
    # A search over sizes; the best goes on with larger batches, and a trace has no scores.
    "search": """
import copy
def fit(model, rows):
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(12):
        loss = model(torch.randn(rows, 64, device="cuda")).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
best = (float("inf"), None)
for width in (256, 1024, 512, 128):
    model = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64)).cuda()
    score = fit(model, 64)
    if score < best[0]: best = (score, copy.deepcopy(model))
fit(best[1], 1 << 14)
""",
    # A penalty on the slope of a network of convolutions.
    "slope-of-pictures": """
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 1, 3, padding=1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x = torch.randn(4, 3, 64, 64, device="cuda", requires_grad=True)
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    optimizer.zero_grad(); slope.pow(2).mean().backward(); optimizer.step()
""",
    "gradients-of-weights": """
model = nn.Linear(64, 64).cuda()
for step in range(40):
    found = torch.autograd.grad(model(torch.randn(32, 64, device="cuda")).pow(2).mean(), model.parameters())
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), found): parameter -= 0.1 * gradient
""",
    # A model for each fold: one is there at a time, and the next while it is made.
    "folds": """
def fold():
    model = nn.Linear(2048, 2048, bias=False).cuda(); optimizer = torch.optim.Adam(model.parameters())
    for step in range(12):
        loss = model(torch.randn(8, 2048, device="cuda")).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
for number in range(6): fold()
""",
    # Weights in half precision, whose copies are trained; what is kept for the backward pass is on the CPU;
    # a model's file is loaded by a function that says where to.
    "copies": """
torch.save(nn.Linear(512, 512).state_dict(), "model.pt")
kept = torch.load("model.pt", map_location=lambda storage, place: storage.cuda(0))
assert kept["weight"].is_cuda
again = torch.load("model.pt", map_location={"cpu": "cuda:0"}); assert again["weight"].is_cuda
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda().half(); model[0].load_state_dict(kept)
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, 0.1)
for step in range(14):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = model(torch.randn(2048, 512, device="cuda", dtype=torch.half))
    out.float().mean().backward(); del out
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    for parameter, master in zip(model.parameters(), masters): master.grad = parameter.grad.float()
    optimizer.step(); model.zero_grad(); optimizer.zero_grad()
""",
    # Batches grow from an epoch on, each epoch is evaluated, and a last stage is far away.
    "stages": """
model = nn.Linear(256, 256).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1); step = 0
for epoch in range(10**9):
    batch_size = 64 if epoch < 6 else 1 << 16
    if epoch == 10**8: batch_size *= 2
    if epoch == 10**7: print("batch_size is", batch_size)
    for _ in range(4):
        loss = model(torch.randn(batch_size, 256, device="cuda")).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad(): model.eval()(torch.randn(64, 256, device="cuda")); model.train()
""",
    # A script that measures what a sample needs, asks under all names, and compiles its model.
    "evaluates-late": """
def evaluate(model):
    model.eval()
    with torch.no_grad():
        return model(torch.randn(1 << 16, 64, device="cuda")).mean().item()
def unused(model):
    model.eval()
    with torch.inference_mode():
        return model(torch.randn(8, 64, device="cuda"))
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(model.parameters())
teacher = nn.Linear(64, 64).cuda().eval()  # part of every step: no evaluation
while True:
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        target = teacher(x)
    loss = F.mse_loss(model(x), target)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
evaluate(model)
""",
    "asks": """
from torch.cuda.memory import max_memory_allocated
before = torch.cuda.memory_allocated(); torch.zeros(1 << 20, device="cuda")
assert torch.cuda.max_memory_allocated() - before == 4 << 20 == max_memory_allocated() - before
draws = torch.Generator(device="cuda").manual_seed(1); assert draws.device.type == "cuda"
x = torch.randn(4, device="cuda", generator=draws)
assert isinstance(x, torch.cuda.FloatTensor) and x.type() == "torch.cuda.FloatTensor"; del x
stats = torch.cuda.memory_stats(); assert stats["allocated_bytes.all.peak"] - before == 4 << 20
assert stats["num_ooms"] == 0
torch.cuda.reset_peak_memory_stats(); assert torch.cuda.max_memory_allocated() == before
model = torch.compile(nn.Linear(64, 64).cuda(), mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model._orig_mod.state_dict(), "model.pt"); assert not hasattr(model._orig_mod, "_orig_mod")
""",
    # What is compared with grows with every step.
    "collects": """
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1); bank = []
for step in range(10**9):
    x = model(torch.randn(256, 64, device="cuda")); bank.append(x.detach())
    loss = (x @ torch.cat(bank).T).pow(2).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # An optimizer that works through another one, and never steps itself.
    "wraps": """
class Sharp(torch.optim.Optimizer):
    def __init__(self, parameters, base, **options):
        super().__init__(parameters, options); self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
    def second_step(self): self.base.step(); self.zero_grad()
model = nn.Linear(64, 64).cuda(); optimizer = Sharp(model.parameters(), torch.optim.SGD, lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 64))
for epoch in range(100000):
    for x, in torch.utils.data.DataLoader(data, 32):
        model(x.cuda()).pow(2).mean().backward(); optimizer.second_step()
    with torch.no_grad(): model.eval()(data[:64][0].cuda()); model.train()
""",
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dict[str, Future[TracedScript]]]:
    folder = tmp_path_factory.mktemp("changing")
    with OnDemand() as pool:
        found = {}
        for name, text in SCRIPTS.items():
            work = folder / name
            work.mkdir()
            (work / "train.py").write_text(HEAD + text)
            command = [sys.executable, "train.py"]
            limits = Limits(seconds=300.0, onward_s=60.0)
            found[name] = pool.submit(trace_command, command, limits, folder=str(work))
        yield found


def _peak(run: Future[TracedScript]) -> float:
    return float(run.result().facts["peak_bytes"]) / MIB


def test_weights_that_are_trained_later_are_seen(runs: Dict[str, Future[TracedScript]]) -> None:
    # Eight layers keep what they got and what they gave, 4 MiB each.
    assert _peak(runs["unfreezes"]) > 8 * 4


def test_a_network_that_grows_by_an_attribute_is_run_at_every_size(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["grows"].result().facts
    assert "onward_failure" not in facts
    assert _peak(runs["grows"]) > 16 * 16 * 128 * 128 * 4 / MIB


def test_batches_that_are_objects_are_known_by_what_they_hold(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["objects"].result().facts
    assert "onward_failure" not in facts
    assert _peak(runs["objects"]) > (1 << 18) * (64 + 256) * 4 / MIB


def test_a_model_is_differentiated_twice_and_then_trained_by_another_optimizer(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["second-derivatives"].result().facts
    assert facts["optimizers"] == ["Adam", "LBFGS"]
    assert "onward_failure" not in facts


def test_a_search_goes_on_with_the_largest_of_its_models(runs: Dict[str, Future[TracedScript]]) -> None:
    facts = runs["search"].result().facts
    assert facts["ended"]
    assert facts["peak_bytes"] > (1 << 14) * 1024 * 4 * 2


def test_gradients_of_gradients_of_convolutions_draw_a_warning(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    names = ("slope-of-pictures", "second-derivatives")
    said = [parse(runs[name].result().summary.decode(), origin="traced").warnings for name in names]
    assert [any("kernels as large as pictures" in text for text in one) for one in said] == [True, False]


def test_weights_that_are_changed_by_gradients_of_their_own_are_trained(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["gradients-of-weights"].result().facts
    assert facts["kind"] == "training"
    assert facts["steps"] == 40


def test_models_and_optimizers_that_a_script_drops_are_gone(runs: Dict[str, Future[TracedScript]]) -> None:
    run = runs["folds"].result()
    assert run.facts["optimizers"] == ["Adam"] * 6
    # Weight, gradient and two states of 16 MiB, and what the optimizer needs on the way: not six times that.
    assert _peak(runs["folds"]) < 7 * 16
    assert b'"name": "Linear"' in run.summary or b'"name":"Linear"' in run.summary


def test_copies_of_weights_are_trained_and_what_is_kept_on_the_cpu_is_not_counted(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["copies"].result().facts
    assert facts["steps"] == 14
    assert "onward_failure" not in facts
    # It is 28 MiB; inputs of the layers, 2 MiB each, would add 11 to that.
    assert _peak(runs["copies"]) < 32


def test_stages_that_code_names_are_reached_however_far_away_they_are(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["stages"].result().facts
    assert facts["ended"]
    assert facts["left_out"] > 9 * 10**8
    assert _peak(runs["stages"]) > 2 * (1 << 16) * 256 * 4 / MIB


def test_an_evaluation_that_the_code_has_and_the_trace_did_not_come_to_is_named(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    said = {name: parse(runs[name].result().summary.decode(), origin="traced").warnings for name in runs}
    named = {name: [text for text in said[name] if "evaluates the model" in text] for name in runs}
    (text,) = named.pop("evaluates-late")
    assert text.startswith("train.py, line 3, evaluate evaluates the model, and the trace did not come there")
    assert not any(named.values())


def test_questions_about_memory_have_true_answers_and_a_compiled_model_its_own(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["asks"].result().facts
    assert facts["steps"] == 5
    assert "checkpoint" in facts["phases"]


def test_memory_that_grows_from_step_to_step_draws_a_warning(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    said = {name: parse(runs[name].result().summary.decode(), origin="traced").warnings for name in runs}
    words = ("still growing from step to step", "keeps something on the GPU")
    growing = [name for name in said if any(word in text for text in said[name] for word in words)]
    assert growing == ["collects"]


def test_an_optimizer_that_works_through_another_is_not_waited_for(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    run = runs["wraps"].result()
    assert run.facts["optimizers"] == ["SGD"]
    assert run.facts["ended"]
    assert run.facts["left_out"]
