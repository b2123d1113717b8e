"""What a script that looks closely is told of its GPU, and what several GPUs and packages allocate on it."""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_gpumem.tracing.script.run import Limits, trace_command
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.tracing.script.test_packages import ACCELERATE, BITSANDBYTES, FLASH

pytestmark = needs_torch
WRITER = "class SummaryWriter:\n    def add_graph(self, *more): raise RuntimeError('a graph by torch.jit')\n"
SCRIPT = """
import io, pickle, torch, torch.nn as nn, torch.distributed as dist
def fails(function, *args):
    try: function(*args)
    except Exception as error: return str(error)
cuda, ones = torch.cuda, torch.ones(7, 3); there = ones.cuda()
start = cuda.memory_stats()["allocated_bytes.all.current"]; more = torch.zeros(512, device="cuda"); del more
stats = cuda.memory_stats(); kinds = "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"
assert stats == {f"{k}.all.{w}": start + 2048 * (w == "peak") for k in kinds for w in ("current", "peak")}
assert stats["num_ooms"] == 0; cuda.reset_peak_memory_stats(); assert cuda.max_memory_allocated() == start
event = cuda.Event(); function = cuda.device(0)(fails)
assert (event.elapsed_time(event), event.query(), event.record(), function, hasattr(event, "__len__")) == (
    1.0, True, None, fails, False)
torch.set_default_device("cuda"); assert torch.zeros(1).is_cuda; torch.set_default_device("cpu")
torch.set_default_tensor_type(torch.DoubleTensor); assert torch.zeros(1).dtype == torch.float64
torch.set_default_tensor_type("torch.FloatTensor"); assert torch.zeros(1).dtype == torch.float32
assert fails(torch.set_default_tensor_type, "torch.OddTensor") == "invalid type object: torch.OddTensor"
number = torch.randn(999, device="cuda").sum().item()
assert type(number) is not float is type(pickle.loads(pickle.dumps(number)))
assert [torch.Generator(on).device.type for on in ("cuda:1", 0, "cpu")] == ["cuda", "cuda", "cpu"]
assert not torch.zeros(2, pin_memory=True).is_pinned() and torch.device(1) == torch.device("cuda", 1)
assert cuda.HalfTensor(ones).dtype == torch.half and torch.as_tensor([1.0], device="cuda").is_cuda
assert torch.Tensor([there.sum()]).shape == (1,) and f"{ones[0]}" == "tensor([1., 1., 1.])"

tried = []
def broken(tensor): tried.append(tensor); raise RuntimeError("broken")
def undefined(x): return nowhere(x)
def replaced(x: torch.Tensor): return nn.init.normal_(x)
assert fails(nn.Linear(2, 2)._apply, broken) == "broken" and len(tried) == 1
assert "nowhere" in fails(torch.jit.script, undefined) and torch.jit.script(replaced) is replaced
assert torch.jit.trace(nn.Linear(3, 2), ones)(ones).shape == (7, 2)
lazy = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d()).half().cuda(); lazy(there.half())
assert [(p.is_cuda, p.dtype, p.requires_grad) for p in lazy.parameters()] == [(True, torch.half, True)] * 4
def loaded(to):
    file = io.BytesIO(); torch.save({"a": ones, "b": [ones, (ones, 2)]}, file); file.seek(0)
    a, (b, (c, two)) = torch.load(file, map_location=to).values(); return [x.is_cuda for x in (a, b, c)]
for to in "cuda", {"cpu": "cuda:0"}, lambda s, _: s.cuda(0): assert loaded(to) == [True] * 3, to
assert loaded("cpu") == loaded(None) == [False] * 3
import tensorboardX.writer; seen = []
tensorboardX.writer.SummaryWriter().add_graph(lambda *x: seen.append(len(x)), (ones, ones))
tensorboardX.writer.SummaryWriter().add_graph(lambda *x: seen.append(len(x)), ones)
tensorboardX.writer.SummaryWriter().add_graph(seen.append); assert seen == [2, 1]
assert torch.compile(fails, disable=True) is fails and torch.compile()(fails)(broken, 1) == "broken"

import bitsandbytes; rules = torch.ops.bitsandbytes; bytes = there.to(torch.int8)
half = torch.zeros(2, 6, 64).cuda().half(); quantized = rules.int8_vectorwise_quant
assert rules.gemm_4bit(half[:, :2], bytes, [96, 64], there, 64, "nf4").shape == (2, 2, 96)
whole = rules.gemm_4bit(half, bytes, [96, 64], there, 64, "nf4", None, bytes, there, there[0, 0])
assert whole.shape == (2, 6, 96)
assert (2, 6, 96) == rules.gemm_4bit(half, bytes, [96, 64], there, 64, "nf4", None, bytes).shape
assert [x if x is None else (x.shape, x.dtype) for level in (0.0, 6.0) for x in quantized(half, level)] == [
    ((2, 6, 64), torch.int8), ((12,), torch.float32), None,
    ((2, 6, 64), torch.int8), ((12,), torch.float32), ((0,), torch.int64)]
assert rules.int8_scaled_mm(bytes, bytes, there, there).dtype == torch.half
assert rules.int8_scaled_mm(bytes, bytes, there, there, None, torch.float32).dtype == torch.float32
paged = bitsandbytes.functional.get_paged(9, 3, dtype=torch.half, device="cuda")
assert (paged.shape, paged.is_paged, paged.page_deviceid) == ((9, 3), True, 0)
torch.library.define("flash_attn::_flash_attn_varlen_backward", "(Tensor dout, Tensor q, Tensor k, Tensor v, "
    "Tensor out, Tensor lse, Tensor? dq, Tensor? dk, Tensor? dv, Tensor starts) -> Tensor")
torch.library.register_fake("flash_attn::_flash_attn_varlen_backward", lambda dout, q, *more: q.new_empty(7))
import flash_attn.flash_attn_interface; flash = torch.ops.flash_attn; nones = None, None, None
q, k = (torch.zeros(2, 130, heads, 72, dtype=torch.half, device="cuda") for heads in (6, 2))
flash._flash_attn_backward(q, q, k, k, q, q, *nones, 0.0); q, k = torch.zeros_like(q[0]), k[0]
flash._flash_attn_varlen_backward(q, q, q, k, q, q, *nones, torch.zeros(4, device="cuda"))
from accelerate.hooks import AlignDevicesHook; AlignDevicesHook.offload = False
assert AlignDevicesHook().init_hook(nn.ReLU()) is not None

parts = nn.parallel.scatter(ones, [0]); whole = nn.parallel.gather([there, there], 0); there.requires_grad_()
same = nn.parallel.scatter(there, [0])[0]; on_cpu = nn.parallel.gather([there], -1)
copies = torch._C._broadcast_coalesced([there, there.half(), there, there], [0], 150)
assert [whole.shape, same.shape, on_cpu.shape, len(copies[0])] == [(14, 3), (7, 3), (7, 3), 4]
assert parts[0].is_cuda and not on_cpu.is_cuda and torch._C._broadcast(ones, [0])[0].is_cuda
assert "2 are named" in fails(torch._C._broadcast, ones, [0, 1])
two = nn.DataParallel(nn.Linear(3, 5).cuda(), [0, 1])
assert two(ones).shape == two(input=ones).shape == (7, 5) and two.replicate(two, [0, 1]) == [two] * 2
class Sums(nn.Module):
    def forward(self, x, name): return x.sum(), x[:2], name, x
summed = nn.DataParallel(Sums(), [0, 1])(ones, "a")
assert [x if isinstance(x, str) else x.shape for x in summed] == [(2,), (2, 3), "a", (7, 3)]

dist.init_process_group("nccl", rank=0, world_size=2, device_id=torch.device("cuda", 0))
one = nn.Linear(3, 4).cuda(); one.bias.requires_grad_(False)
model = nn.parallel.DistributedDataParallel(one, device_ids=[0], gradient_as_bucket_view=True)
def hook(state, bucket): pass
model.register_comm_hook(None, hook)
with model.no_sync(), model.join(): assert {} == model._get_ddp_logging_data()
assert "iterable" in fails(iter, model)
into = [torch.zeros(7, 3, device="cuda"), torch.zeros(2, device="cuda")]; named = [None] * 2
dist.all_gather(into, there.detach()); dist.gather(there.detach(), into); dist.gather(there)
assert into[0].tolist() == ones.tolist(); dist.all_gather_object(named, "n"); assert named == ["n", "n"]
dist.gather_object("m", named); assert named == ["m"] * 2; dist.gather_object("m")
dist.scatter_object_list(named, ["k", "l"]); assert named == ["k"] * 2
dist.all_reduce(into[0], group=dist.new_group([0, 1]))
assert dist.all_reduce(into[0], async_op=True).wait() is None
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(): return torch.autograd.grad((x * x).sum(), x)[0]
optimizer = torch.optim.SGD([*two.parameters(), one.weight], 0.1)
for step in range(3):
    loss = Again.apply(model(ones)).sum() + two(ones).sum(); loss.backward(); optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_that_looks_closely_finds_a_gpu_and_allocates_what_it_would_there(tmp_path: Path) -> None:
    board = {"tensorboardX/__init__.py": "", "tensorboardX/writer.py": WRITER}
    for name, text in {**BITSANDBYTES, **FLASH, **ACCELERATE, **board, "train.py": SCRIPT}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    traced = trace_command([sys.executable, "train.py"], Limits(seconds=300.0), folder=str(tmp_path))
    assert_trace_kept("answers", traced)
