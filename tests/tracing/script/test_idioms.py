"""Ways to write a training script that others have, several in each: all are traced, and counted right."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.summaries.trace_types import Site, Trace
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

FURTHER_STREAM = 70 << 20
HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"
SCRIPTS: Dict[str, str] = {
    # Checks of values that stop a script, numbers of an empty tensor, and the oldest constructor of all.
    "checks": """
torch.set_default_tensor_type("torch.cuda.FloatTensor")
layer = nn.Linear(8, 8); optimizer = torch.optim.Adam(layer.parameters())
for step in range(5):
    x = torch.randn(4, 8)
    far = torch.cat([x, torch.Tensor([1e10]).expand(x[..., :1].shape)], -1)
    none = torch.tensor([], device="cuda")
    if (torch.cat([none, none]).unique(return_counts=True)[1] > 1).any():
        raise ValueError("repeated")
    if torch.isnan(x).any():
        raise ValueError("not a number")
    if not torch.isfinite(x).all():
        raise ValueError("infinite")
    assert (x < 100).all()
    assert not torch.equal(x, x + 1)
    taken = torch.zeros(4, 8, dtype=torch.uint8).scatter(1, x.max(1)[1][:, None], 1)
    taken = taken.scatter(1, x.min(1)[1][:, None], 1) > 0
    assert not taken.gather(1, x.argsort()[:, 1:7]).any(), "taken twice"
    counts = [torch.tensor(0.0), torch.tensor(3.0)]; torch._foreach_add_(counts, 1)
    torch._foreach_mul_(counts, [2.0, 3.0])
    assert [count.item() for count in counts] == [2.0, 12.0]
    optimizer.zero_grad(); layer(far[:, :8]).sum().backward(); optimizer.step()
""",
    # Data that stays on the CPU, chosen by what was computed on the GPU.
    "chosen on the CPU": """
layer = nn.Linear(64, 10).cuda(); optimizer = torch.optim.Adam(layer.parameters())
data = torch.randn(4000, 64)
data = data[torch.cat([(torch.randn(1000, device="cuda") > 0).cpu() for _ in range(4)])]
for x in data.split(1000):
    scores = layer(x.cuda())
    right = scores.argmax(1) == torch.zeros(len(x), dtype=torch.int64, device="cuda")
    assert len(x) == 1000 and 50 <= right.cpu().sum() <= 200, right.cpu().sum()
    optimizer.zero_grad(); scores.sum().backward(); optimizer.step()
""",
    # Layers that `forward` makes for one call: nobody has them any more when it ends.
    "layers of one call": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
    def forward(self, x):
        x = nn.Sequential(nn.SiLU(), nn.Dropout(0.1))(self.first(x))
        return nn.GELU()(x)
model = Net().cuda(); optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = model(torch.randn(32, 64, device="cuda")).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # Numbers that are drawn until all are in bounds, of a weight that is on the GPU already.
    "bounded": """
layer = nn.Linear(64, 64, device="cuda"); nn.init.trunc_normal_(layer.weight, std=0.02)
with torch.device("cuda"):
    token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 64), std=0.02))
optimizer = torch.optim.Adam([*layer.parameters(), token])
for step in range(5):
    loss = layer(token.expand(32, -1)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # What libraries do around evaluation and checkpoints: sizes by way of the GPU, weights known by their
    # addresses, the state of random numbers by its other name.
    "libraries": """
layer = nn.Linear(64, 64).cuda(); x = torch.randn(6, 2, device="cuda")
sizes = torch.tensor(x.shape, device=x.device)[None].cpu()
assert max(size[1] for size in sizes) == 2 and torch.tensor([3, 4], device="cuda").max().item() == 4
pairs = torch.ones(8, 8).triu() - torch.eye(8)
assert len(torch.randn(8, 8, device="cuda")[pairs == 1]) == 28
spectrum = torch.fft.rfft(torch.randn(4, 96, 3, device="cuda"), dim=1).abs().mean(0).mean(-1)
assert min(spectrum.topk(5)[1].cpu().tolist()) > 0
tied = [layer.weight, layer.bias, layer.weight.view(-1)]
assert len({one.untyped_storage().data_ptr() for one in tied}) == 2
torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state())
optimizer = torch.optim.Adam(layer.parameters())
for step in range(5):
    optimizer.zero_grad(); layer(torch.randn(4, 64, device="cuda")).sum().backward(); optimizer.step()
""",
    # A graph whose edges are found on the GPU, in data that came from the CPU; 5 edges for each node.
    "graph": """
torch.manual_seed(0); n = 2000
adjacency = torch.zeros(n, n); adjacency[torch.arange(n).repeat(5), torch.randperm(5 * n) % n] = 1.0
adjacency = adjacency.cuda(); x = torch.randn(n, 64).cuda(); layer = nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for step in range(5):
    rows, columns = (adjacency.t() > 0.5).nonzero().t()
    message = layer(x)[columns]
    loss = torch.zeros(n, 64, device="cuda").index_add(0, rows, message).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # What is made from one expert's mask has as many rows; counts of an unknown mask fit what it selects.
    "experts": """
experts = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)]).cuda(); gate = nn.Linear(128, 4).cuda()
optimizer = torch.optim.Adam([*experts.parameters(), *gate.parameters()])
for step in range(5):
    x = torch.randn(512, 128, device="cuda"); weight, index = gate(x).softmax(-1).topk(2, dim=-1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        mask = index == number
        if mask.any():
            rows = mask.any(dim=-1).nonzero().flatten()
            y.index_add_(0, rows, expert(x[rows]) * weight[mask].view(-1, 1))
    good = y.norm(dim=1) > 0.3; count = int(good.sum())
    loss = y.pow(2).mean() + (y[good].sum(1) - torch.ones(count, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    # Lazy layers, batches that are loaded ahead on a stream, pinned tensors, an old default of "cuda".
    "loads-ahead": """
torch.set_default_tensor_type("torch.cuda.FloatTensor"); assert torch.zeros(1).is_cuda
torch.set_default_tensor_type("torch.FloatTensor"); assert not torch.zeros(1).is_cuda
assert torch.device(0) == torch.device("cuda", 0)
side = torch.cuda.Stream()
def load():
    batch = torch.randint(0, 255, (64, 3, 32, 32), dtype=torch.uint8, pin_memory=True)
    with torch.cuda.stream(side): return batch.cuda(non_blocking=True).float().div_(255)
model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
model(torch.zeros(1, 3, 32, 32, device="cuda")); optimizer = torch.optim.SGD(model.parameters(), 0.1)
following = load(); losses = []
for step in range(60):
    now = following; now.record_stream(torch.cuda.current_stream()); following = load()
    loss = model(now).pow(2).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.detach())
print(torch.stack(losses).mean()); del losses, following, now
""",
    "one-process-of-one": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)
model = DDP(nn.Linear(256, 256).cuda(), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    loss = model(torch.randn(64, 256, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); dist.all_reduce(loss.detach().clone())
""",
    # Old names of types, one GPU as DataParallel has it, sizes and choices that data decides, padded batches
    # of texts, batches of drawn sizes, half precision, an optimizer's and a scaler's state.
    "odds": """
torch.manual_seed(0)
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
old = torch.cuda.FloatTensor(3, 4).zero_(); assert old.type() == "torch.cuda.FloatTensor"
assert old.type("torch.cuda.HalfTensor").dtype == torch.half and isinstance(old, torch.cuda.FloatTensor)
whole = torch.cuda.LongTensor([1, 2, 0]); assert old.type(torch.float64).dtype == torch.float64
free, total = torch.cuda.mem_get_info(); assert 0 < free <= total
generator = torch.Generator(device="cuda").manual_seed(3)
layers = nn.Embedding(50, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 50)
model = nn.DataParallel(nn.Sequential(*layers).cuda())
texts = [torch.arange(1, 3 + number * 7 % 40) for number in range(24)]
def padded(items): return pad_sequence(items, batch_first=True)
loader = DataLoader(texts, batch_size=4, collate_fn=padded)
optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
scaler = torch.amp.GradScaler("cuda")
for tokens in loader:
    tokens = tokens.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        scores = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten(), ignore_index=0)
    hit = scores.detach().float().softmax(-1)
    chosen = torch.multinomial(hit[:, 0], 3, generator=generator); rows = hit[hit > 0.5]
    places = (tokens > 0).nonzero(); twice = torch.tensor([2] * 50).cuda()
    several = torch.repeat_interleave(hit[0, 0], twice)
    best = hit.amax(-1).cpu().numpy().mean(); likely = hit[:, 0].cpu()
    seen, counts = tokens.unique(return_counts=True)
    spread = hit[0].to_sparse(); kept = torch.masked_select(hit, hit > hit.mean())
    if loss.item() > 1e9 or not torch.isfinite(loss): continue
    scaler.scale(loss).backward(); scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
def drawn(items): return torch.randn(len(items), 8 * int(torch.randint(1, 5, ())), 32)
sizes = DataLoader(list(range(16)), batch_size=4, collate_fn=drawn)
head = nn.Linear(32, 1).cuda()
second = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9, nesterov=True)
for batch in sizes:
    second.zero_grad(); head(batch.cuda()).pow(2).mean().backward(); second.step()
state = {**optimizer.state_dict(), **scaler.state_dict()}; print(len(state), best, several.shape)
""",
    # Somebody who has no GPU wrote it.
    "cpu": """
layer = nn.Linear(64, 64); optimizer = torch.optim.Adam(layer.parameters())
for step in range(5):
    optimizer.zero_grad(); layer(torch.randn(16, 64)).sum().backward(); optimizer.step()
""",
    # A checkpoint of a recurrent layer; batch first: gradients lie the other way round; a picture of bytes.
    "layouts": """
rnn = nn.LSTM(32, 64, batch_first=True)
rnn.load_state_dict(nn.LSTM(32, 64).state_dict()); rnn.cuda(); head = nn.Linear(64, 500).cuda()
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], 0.1)
for step in range(5):
    out = rnn(torch.randn(16, 25, 32, device="cuda"))[0]
    scores = F.log_softmax(head(out), dim=-1).transpose(1, 2)
    loss = F.nll_loss(scores, torch.zeros(16, 25, dtype=torch.long, device="cuda"))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    picture = torch.rand(3, 300, 300, device="cuda").permute(1, 2, 0).to("cpu", torch.uint8)
    spread = torch.rand(20000, 64, device="cuda", dtype=torch.double).std(0)
""",
    # Evaluation in inference mode, attention by a kernel that is chosen, work that is captured in a graph.
    "modes": """
from torch.nn.attention import SDPBackend, sdpa_kernel
convolution = nn.Conv2d(16, 16, 3, padding=1).cuda()
optimizer = torch.optim.SGD(convolution.parameters(), 0.1)
@torch.inference_mode()
def sample(): return convolution(torch.randn(64, 16, 40, 40, device="cuda"))
for step in range(5):
    loss = convolution(torch.randn(4, 16, 16, 16, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.inference_mode(): assert not torch.is_grad_enabled()
    sample(); assert torch.is_grad_enabled()
    q = torch.randn(2, 4, 128, 32, device="cuda")
    with sdpa_kernel([SDPBackend.MATH]): F.scaled_dot_product_attention(q, q, q)
    F.scaled_dot_product_attention(q, q, q)
side = torch.cuda.Stream(); g = torch.cuda.CUDAGraph(); x = torch.randn(64, 64, device="cuda")
with torch.cuda.stream(side): x @ x
with torch.cuda.graph(g): y = (x @ x).relu().sum()
x.copy_(torch.randn(64, 64)); g.replay()
for step in range(5):
    loss = convolution(torch.randn(4, 16, 16, 16, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dict[str, Future[TracedScript]]]:
    folder = tmp_path_factory.mktemp("idioms")
    with OnDemand() as pool:
        found = {}
        for name, text in SCRIPTS.items():
            work = folder / name
            work.mkdir()
            (work / "train.py").write_text(HEAD + text)
            command = [sys.executable, "train.py"]
            found[name] = pool.submit(trace_command, command, Limits(seconds=300.0), folder=str(work))
        yield found


def _trace(run: Future[TracedScript]) -> Trace:
    trace = parse(run.result().summary.decode(), origin="traced").trace
    assert trace is not None
    return trace


def _allocated(run: Future[TracedScript]) -> List[Site]:
    trace = _trace(run)
    return [trace.sites[value] for value in trace.events if value >= 0]


def _sizes(run: Future[TracedScript], operator: str) -> List[int]:
    return [site.bytes_at(1) for site in _allocated(run) if site.operator == f"aten::{operator}"]


@pytest.mark.parametrize(
    "name", ["libraries", "modes", "checks", "experts", "graph", "layouts", "one-process-of-one", "odds"]
)
def test_a_trace_is_what_it_was(runs: Dict[str, Future[TracedScript]], name: str) -> None:
    assert_trace_kept(name, runs[name].result())


def test_places_found_in_data_from_the_cpu_are_as_many_as_there_are(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    found = _sizes(runs["graph"], "nonzero")
    assert found
    assert max(found) <= 2000 * 5 * 2 * 8  # not 2,000 x 2,000 of them


def test_checks_of_values_pass_and_old_constructors_follow_the_default_type(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    assert _trace(runs["checks"]).job.optimizer == "adam"


def test_a_mask_on_the_cpu_holds_where_it_selects_on_the_gpu(runs: Dict[str, Future[TracedScript]]) -> None:
    found = runs["chosen on the CPU"].result()
    assert found.facts["ended"]
    assert found.facts["steps"] == 4


def test_layers_that_forward_makes_for_one_call_are_listed(runs: Dict[str, Future[TracedScript]]) -> None:
    summary = parse(runs["layers of one call"].result().summary.decode(), origin="traced")
    kinds = [layer.kind for layer in summary.layers]
    assert kinds == ["Net", "Linear", "Sequential", "SiLU", "Dropout", "GELU"]


def test_weights_on_the_gpu_that_are_drawn_until_all_are_in_bounds_end(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    assert runs["bounded"].result().facts["steps"] >= 3


def test_what_libraries_do_around_evaluation_and_checkpoints_is_served(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["libraries"].result().facts
    assert facts["steps"] >= 3
    assert "failure" not in facts


def test_experts_get_as_many_rows_as_their_masks_have(runs: Dict[str, Future[TracedScript]]) -> None:
    assert runs["experts"].result().facts["steps"] >= 3
    rows = {size // (128 * 4) for size in _sizes(runs["experts"], "addmm")}
    assert all(150 < count < 362 for count in rows - {512 * 4 // 128})  # about half of 512, each


def test_batches_loaded_ahead_are_released_once_and_lazy_layers_are_on_the_gpu(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    traced = runs["loads-ahead"].result()
    assert _trace(runs["loads-ahead"]).events  # a block that is released twice is refused when it is read
    batch, weights = 64 * 3 * 32 * 32 * 4, 8 * 28 * 28 * 10 * 4
    assert 3 * batch + weights < traced.facts["peak_bytes"] < 16 * batch + weights + FURTHER_STREAM


def test_a_group_of_one_process_takes_what_nccl_takes(runs: Dict[str, Future[TracedScript]]) -> None:
    sizes = [site.bytes_at(1) for site in _allocated(runs["one-process-of-one"]) if site.operator == "nccl"]
    assert sizes == [558 << 20]


def test_copies_for_gradients_that_lie_otherwise_are_counted(runs: Dict[str, Future[TracedScript]]) -> None:
    scores = 16 * 25 * 500 * 4
    assert _sizes(runs["layouts"], "_log_softmax_backward_data").count(scores) >= 2 * 3  # with its copy
    assert 16 * 25 * 64 * 4 in _sizes(runs["layouts"], "clone")  # of the gradient of the network's output
    assert 300 * 300 * 3 * 4 in _sizes(runs["layouts"], "_to_copy")
    spread = [site.reduction for site in _allocated(runs["layouts"]) if site.operator == "aten::std"]
    assert {reduction.number for reduction in spread if reduction is not None} == {32}


def test_modes_kernels_and_streams_count_as_on_a_gpu(runs: Dict[str, Future[TracedScript]]) -> None:
    found = _allocated(runs["modes"])
    sampled = [s.convolution for s in found if s.convolution is not None and s.convolution.size == (40, 40)]
    assert sampled  # in inference mode cuDNN takes its workspace too
    assert any(site.operator.startswith("aten::_scaled_dot_product_efficient") for site in found)
    assert 2 * 4 * 128 * 128 * 4 in _sizes(runs["modes"], "_safe_softmax")  # asked for: all scores
    assert [site.bytes_at(1) for site in found if site.operator == "stream"] == [FURTHER_STREAM]
    assert sum(site.operator == "cublas" for site in found) == 3  # on each stream
    assert any(site.operator == "cuda graph" for site in found)


def test_a_training_on_the_cpu_is_said_to_be_one(runs: Dict[str, Future[TracedScript]]) -> None:
    with pytest.raises(TargetError, match="nothing was put on the GPU"):
        runs["cpu"].result()
    assert not parse(runs["graph"].result().summary.decode(), origin="graph").warnings


def test_weights_of_a_recurrent_layer_are_copied_into_one_buffer(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    weights = [site.bytes_at(1) for site in _allocated(runs["layouts"]) if site.operator == "parameter"]
    assert 4 * 64 * (32 + 64 + 2) * 4 in weights


ADAPTIVE = """
import torch
from torch import nn
layer = nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(layer.parameters())
for step in range(5):
    x = torch.randn(32, 64, device="cuda"); now, end = torch.tensor([0.0, 1.0], device="cuda")
    while end > now:
        change = layer(x); x = x + change; now = now + 1 / change.norm()
    optimizer.zero_grad(); x.pow(2).mean().backward(); optimizer.step()
"""


def test_a_loop_that_only_values_on_the_gpu_end_is_ended_in_each_step_and_named(tmp_path: Path) -> None:
    """Solvers with adaptive steps: each round keeps its tensors, and nobody knows how many there are."""
    (tmp_path / "train.py").write_text(ADAPTIVE)
    traced = trace_command([sys.executable, "train.py"], Limits(seconds=300.0), folder=str(tmp_path))
    assert traced.facts["steps"] > 1
    assert "failure" not in traced.facts, traced.facts
    (warning,) = parse(traced.summary.decode(), origin="adaptive").warnings
    assert "how often the loop at train.py, line 7," in warning
    assert "ended after 20 rounds" in warning
    # What 20 rounds keep for the backward pass: the input of the layer and of the sum.
    assert traced.facts["peak_bytes"] > 2 * 20 * 32 * 64 * 4
