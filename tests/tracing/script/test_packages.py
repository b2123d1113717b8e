"""Packages of others in a traced script: stand-ins with the parts of their interface that a trace meets.

The sizes asked for are computed from the packages' source, as the rules are; none of it was measured.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator

import pytest

from slurm_gpumem.errors import NotEstimatedError
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

BITSANDBYTES = {
    "bitsandbytes/__init__.py": "from . import _ops, functional",
    "bitsandbytes/_ops.py": """
import torch
torch.library.define("bitsandbytes::gemm_4bit", "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, "
    "int blocksize, str quant_type, Tensor? bias=None, Tensor? absmax_8bit=None, Tensor? absmax_code=None, "
    "Tensor? absmax_offset=None) -> Tensor")
@torch.library.register_fake("bitsandbytes::gemm_4bit")
def _(A, B, shapeB, *more, **others): return A.new_empty((*A.shape[:-1], shapeB[0]))
torch.library.define("bitsandbytes::int8_vectorwise_quant",
                     "(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor?)")
@torch.library.register_fake("bitsandbytes::int8_vectorwise_quant")
def _(A, threshold=0.0): raise RuntimeError("how many columns are outliers depends on values")
torch.library.define("bitsandbytes::int8_scaled_mm", "(Tensor A, Tensor B, Tensor row_stats, "
    "Tensor col_stats, Tensor? bias=None, ScalarType? dtype=None) -> Tensor")
@torch.library.register_fake("bitsandbytes::int8_scaled_mm")
def _(A, B, *more, **others): return A.new_empty((*A.shape[:-1], B.shape[0]), dtype=torch.float16)
""",
    "bitsandbytes/functional.py": """
def get_paged(*shape, dtype, device): raise RuntimeError("needs the package's library")
def fill(buffer, value): raise RuntimeError("needs the package's library")
def prefetch_tensor(buffer): raise RuntimeError("needs the package's library")
""",
}
FLASH = {
    "flash_attn/__init__.py": "",
    "flash_attn/flash_attn_interface.py": """
import torch
torch.library.define("flash_attn::_flash_attn_backward", "(Tensor dout, Tensor q, Tensor k, Tensor v, "
    "Tensor out, Tensor lse, Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, float dropout_p) -> Tensor")
@torch.library.register_fake("flash_attn::_flash_attn_backward")
def _(dout, q, *more): return q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
""",
}
TRITON = {
    # PyTorch looks for it once, and wants more of it than a launch.
    "late/triton/__init__.py": "from triton.runtime.jit import jit",
    "late/triton/runtime/__init__.py": "",
    "late/triton/runtime/jit.py": """
class KernelInterface:
    def __getitem__(self, grid): return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)
class JITFunction(KernelInterface):
    def run(self, *args, **kwargs): raise RuntimeError("0 active drivers")
def jit(function): return JITFunction()
""",
}
ACCELERATE = {
    "accelerate/__init__.py": "",
    "accelerate/hooks.py": """
import torch
class AlignDevicesHook:
    offload, place_submodules = True, True
    def init_hook(self, module):
        self.kept = {name: p.data for name, p in module.named_parameters()}
        return self.post_forward(module, module)
    def pre_forward(self, module):
        for name in self.kept: setattr(module, name, torch.nn.Parameter(self.kept[name].to("cuda")))
    def post_forward(self, module, output):
        for name in self.kept: setattr(module, name, torch.nn.Parameter(self.kept[name].to("meta")))
        return output
""",
}
HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.randn(4096, 512).cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
SCRIPTS: Dict[str, str] = {
    "four-bit": """
import bitsandbytes
class Weight(nn.Parameter):  # as Params4bit: quantized where it moves to a GPU
    def to(self, *args, **kwargs):
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None and device.type != "meta" and self.dtype.is_floating_point:
            whole = self.data.to(device)
            self.data = torch.empty((whole.numel() // 2, 1), dtype=torch.uint8, device=whole.device)
            self.scales = torch.empty(whole.numel() // 64, device=whole.device)
        return self
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Weight(torch.zeros(8192, 512), requires_grad=False)
        self.down, self.up = nn.Linear(512, 8), nn.Linear(8, 8192)
    def forward(self, x):
        assert self.weight.shape == (8192 * 256, 1) and self.weight.is_cuda
        y = torch.ops.bitsandbytes.gemm_4bit(x, self.weight.data, [8192, 512], self.weight.scales, 64, "nf4")
        return y + self.up(self.down(x))
model = Linear().to("cuda")
"""
    + TRAIN,
    "eight-bit": """
import bitsandbytes
class Linear(nn.Module):
    def __init__(self):
        super().__init__(); self.up = nn.Linear(512, 2048)
        self.register_buffer("weight", torch.zeros(2048, 512, dtype=torch.int8))
    def forward(self, x):
        rows, stats, outliers = torch.ops.bitsandbytes.int8_vectorwise_quant(x.half(), 6.0)
        y = torch.ops.bitsandbytes.int8_scaled_mm(rows, self.weight, stats, stats, None, torch.float32)
        return y + self.up(x)
model = Linear().to("cuda")
"""
    + TRAIN,
    "paged": """
import bitsandbytes.functional as functional
class Paged(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if "seen" not in self.state[p]:
                    seen = functional.get_paged(*p.shape, dtype=torch.float32, device=p.device)
                    functional.fill(seen, 0); self.state[p]["seen"] = seen
        return super().step(closure)
model = nn.Linear(512, 8192).cuda(); torch.optim.SGD = Paged
"""
    + TRAIN,
    "flash": """
import flash_attn.flash_attn_interface
class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k): ctx.save_for_backward(q, k); return q.clone()
    @staticmethod
    def backward(ctx, gradient):
        q, k = ctx.saved_tensors; dq, dk = torch.empty_like(q), torch.empty_like(k)
        torch.ops.flash_attn._flash_attn_backward(gradient, q, k, k, q, q, dq, dk, dk, 0.0)
        return dq, dk
class Model(nn.Module):
    def __init__(self): super().__init__(); self.q, self.k = nn.Linear(512, 512), nn.Linear(512, 64)
    def forward(self, x):
        x = x.view(4, 1024, 512)
        return Attention.apply(self.q(x).view(4, 1024, 8, 64), self.k(x).view(4, 1024, 1, 64))
model = Model().cuda()
"""
    + TRAIN,
    "triton": """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): y = torch.empty_like(x); kernel[(1,)](x, y); return y
    @staticmethod
    def backward(ctx, gradient): y = torch.zeros_like(gradient); kernel[(1,)](gradient, y); return y
class Model(nn.Module):
    def __init__(self): super().__init__(); self.linear = nn.Linear(512, 512)
    def forward(self, x): return Double.apply(self.linear(x))
model = Model().cuda()
import sys; sys.path.insert(0, "late"); import triton
@triton.jit
def kernel(x, y): pass
"""
    + TRAIN,
    "offloaded": """
from accelerate.hooks import AlignDevicesHook
layers, hooks = [nn.Linear(2048, 2048) for _ in range(8)], [AlignDevicesHook() for _ in range(8)]
for layer, hook in zip(layers, hooks): hook.init_hook(layer)
with torch.no_grad():
    x = torch.randn(4, 2048).cuda()
    for layer, hook in zip(layers, hooks):
        hook.pre_forward(layer); x = hook.post_forward(layer, layer(x))
""",
    "texts": """
class Texts(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, n):
        if n >= 4000: raise IndexError
        return {"input_ids": [1] * (2000 if n == 2718 else 20 + n % 60)}
def padded(items):
    longest = max(len(item["input_ids"]) for item in items)
    return torch.tensor([item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items])
model = nn.Sequential(nn.Embedding(10, 256), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for tokens in torch.utils.data.DataLoader(Texts(), 8, shuffle=True, collate_fn=padded):
    model(tokens.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
""",
    "sequences": """
class Sequences(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, n): return torch.ones(2000 if n == 2718 else 20 + n % 60, dtype=torch.long), n % 3
def padded(items): return nn.utils.rnn.pad_sequence([tokens for tokens, _ in items], batch_first=True)
model = nn.Sequential(nn.Embedding(10, 256), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for tokens in torch.utils.data.DataLoader(Sequences(), 8, shuffle=True, collate_fn=padded):
    model(tokens.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
""",
}
PACKAGES: Dict[str, Dict[str, str]] = {
    "flash": FLASH,
    "offloaded": ACCELERATE,
    "triton": TRITON,
    "texts": {},
    "sequences": {},
}
Runs = Dict[str, "Future[TracedScript]"]
MIB = 1 << 20
WHAT_IT_HAS = "import builtins\nKNOWS, NAMES = (range, enumerate), {*globals()}\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("packages")
    with OnDemand() as pool:
        found = {}
        for name, text in SCRIPTS.items():
            work = folder / name
            work.mkdir()
            for path, code in PACKAGES.get(name, BITSANDBYTES).items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_text(code)
            (work / "train.py").write_text(HEAD + text)
            found[name] = pool.submit(_trace, work)
        yield found


def _trace(work: Path) -> TracedScript:
    return trace_command([sys.executable, "train.py"], Limits(seconds=300.0), folder=str(work))


def _blocks(traced: TracedScript, operator: str) -> list[int]:
    """Bytes of the allocations by an operator."""
    trace = read_summary(traced.summary.decode()).trace
    assert trace is not None
    return [site.bytes_at(1) for site in trace.sites if site.operator == operator]


def _remarks(traced: TracedScript) -> str:
    trace = read_summary(traced.summary.decode()).trace
    assert trace is not None
    return " ".join(trace.remarks)


def test_a_weight_of_four_bits_is_whole_only_while_it_is_multiplied(runs: Runs) -> None:
    traced = runs["four-bit"].result()
    assert_trace_kept("four-bit", traced)
    # The whole weight in the input's type, made for each product of many rows.
    assert 8192 * 512 * 4 in _blocks(traced, "aten::new_empty")
    trace = read_summary(traced.summary.decode()).trace
    assert trace is not None
    weights = sum(site.bytes_at(1) for site in trace.sites if site.category == "weights")
    assert weights < 8192 * 256 + MIB
    assert "bitsandbytes: allocations computed from its source" in _remarks(traced)


def test_a_product_of_eight_bits_is_summed_in_integers(runs: Runs) -> None:
    sizes = _blocks(runs["eight-bit"].result(), "aten::new_empty")
    assert 4096 * 2048 * 4 in sizes


def test_states_of_a_paged_optimizer_are_not_on_the_gpu_and_that_is_said(runs: Runs) -> None:
    traced = runs["paged"].result()
    assert any("managed memory" in note for note in traced.notes)
    # Weights, gradients and the output with its gradient; no state as large as the weights.
    assert traced.facts["peak_bytes"] < 2 * 8192 * 512 * 4 + 4096 * 8192 * 4 + 4096 * 512 * 4 + 2 * MIB


def test_the_backward_pass_of_flash_attn_takes_its_sums_and_shared_heads(runs: Runs) -> None:
    sizes = _blocks(runs["flash"].result(), "flash_attn::_flash_attn_backward")
    assert 4 * 1024 * 8 * 64 * 4 in sizes
    assert sizes.count(4 * 1024 * 8 * 64 * 4) >= 1


def test_triton_kernels_are_not_run(runs: Runs) -> None:
    traced = runs["triton"].result()
    assert_trace_kept("triton", traced)
    assert traced.facts["steps"] >= 3
    assert "Triton kernels" in _remarks(traced)


def test_a_model_that_accelerate_keeps_partly_on_the_cpu_is_not_estimated(runs: Runs) -> None:
    with pytest.raises(NotEstimatedError, match=r"keeps part of its model on the CPU \(accelerate\)"):
        runs["offloaded"].result()


@pytest.mark.parametrize(
    ("name", "words"),
    [("texts", "the longest of 4,000 texts, 2,000 tokens"), ("sequences", "of 4,000 items, 2,001 numbers")],
    ids=["texts", "sequences"],
)
def test_the_longest_text_is_in_a_traced_batch(runs: Runs, name: str, words: str) -> None:
    traced = runs[name].result()
    assert any(words in note for note in traced.notes)
    # The output of a batch padded to 2,000 tokens, and its input.
    assert traced.facts["peak_bytes"] > 2 * 8 * 2000 * 256 * 4


def test_nothing_is_put_into_modules_and_packages_on_any_path_keep_python_s_own(tmp_path: Path) -> None:
    """As scipy 1.17 finds out, which goes through its own names. Packages lie where clusters have them."""
    for path in ("installed", "loaded/lib", "own"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / f"of_{path[:4]}.py").write_text(WHAT_IT_HAS)
    (tmp_path / "installed" / "of_inst-1.0.dist-info").mkdir()
    (tmp_path / "train.py").write_text(
        WHAT_IT_HAS + "import of_own as early\n" + HEAD + "import of_inst, of_load, sys\n"
        "del sys.modules['of_own']; import of_own as late\n"
        "for module in (sys.modules['__main__'], early, late, of_inst, of_load):\n"
        "    assert not {'range', 'enumerate'} & {*module.NAMES, *vars(module)}, module\n"
        "for library in (of_inst, of_load):\n"
        "    assert library.KNOWS == (builtins.range, builtins.enumerate), library\n"
        "builtins.profile = lambda function: function\n"
        "@profile\n"
        "def epochs(): return range(100_000)\n"
        "model = nn.Linear(512, 512).cuda()\n"
        + TRAIN.split("for", maxsplit=1)[0]
        + "for epoch in range(100_000):"
        + TRAIN.partition(":")[2]
    )
    folders = [str(tmp_path / name) for name in ("installed", "loaded/lib", "own")]
    about = {
        "PYTHONPATH": ":".join(folders),
        "LOADEDMODULES": "load/2.1",
        "LOAD_ROOT": str(tmp_path / "loaded"),
    }
    traced = trace_command(
        [sys.executable, "train.py"],
        Limits(seconds=300.0, onward_s=1.0),
        folder=str(tmp_path),
        environment={**os.environ, **about},
    )
    assert traced.facts["ended"]
    assert traced.facts["left_out"] > 0  # of the script's own loop
    assert str(tmp_path / "installed") in traced.packages
    assert str(tmp_path / "own" / "of_own.py") in traced.files
