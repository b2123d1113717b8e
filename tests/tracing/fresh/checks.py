"""Run in a process of its own: traces fresh steps at a tiny size; prints what came of each as JSON.

`.venv/bin/python -m tests.tracing.fresh.checks --write` keeps it where a change of it is meant.
"""

from __future__ import annotations

import json
import sys
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slurm_gpumem import estimate
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.summaries.trace_types import evaluate
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.live import summarize
from tests.tracing.fresh import fresh_a, fresh_b, fresh_c

FEW = (
    "triu_index", "amp_scaler", "beam_crf", "mixtral_style", "diffusion_unet", "gcn_given", "dist_kl", "csr",
    "sparse_embeddings", "moe_mask", "spectral_conv", "hungarian", "packed_rnn", "muon_lm", "wgan_gp", "ppo",
    "assert_close", "lstm_cells", "ensemble_stack", "tabular_moments", "perceiver", "lbfgs",
)  # fmt: skip
"""Steps that together run nearly all of the tracer that any of them runs."""


def few_steps() -> Dict[str, str]:
    return _traced(lambda name: name in FEW)


def other_steps() -> Dict[str, str]:
    return _traced(lambda name: name not in FEW)


def _traced(wanted: Callable[[str], bool]) -> Dict[str, str]:
    """Of fresh steps and odd models: what the trace holds and what is made of it, or its error."""
    found = {}
    fresh = [(make, (False,), False) for make in (*fresh_a.ALL, *fresh_b.ALL)]
    for make, words, scalable in [*fresh, *((make, (), True) for make in fresh_c.ALL)]:
        if not wanted(make.__name__):
            continue
        torch.manual_seed(0)
        model, batch, step = make(*words)
        how: Dict[str, Any] = {"step": step} if callable(step) else {"loss": step}
        if not scalable:
            how.update(batch_size=len(batch[0]), scalable=False)
        try:
            found[make.__name__] = _row(summarize(model, batch, **how))
        except Exception as error:  # noqa: BLE001 - each failure is an answer
            found[make.__name__] = f"{type(error).__name__}: {error}"
    return found


def _row(summary: ModelSummary) -> str:
    """Figures of the trace and of its estimate, and a digest of all blocks and kernels."""
    trace = summary.trace
    assert trace is not None
    stats = replay(trace).stats
    work = sum(evaluate(size, trace.job.batch) for kernel in trace.kernels for size in kernel.sizes)
    shown = estimate(summary, gpu="a100")
    assert shown.utilization is not None
    told = len(summary.warnings) + len(trace.remarks)
    whole = [trace.sites, trace.events, trace.phases, trace.kernels, [one[:4] for one in summary.layers]]
    words = [
        trace.way, len(trace.events), stats.peak_allocated, stats.peak_reserved, shown.peak_mib, work, told,
        *(f"{one:.4g}" for one in shown.utilization[:4]), sha256(repr(whole).encode()).hexdigest()[:8],
    ]  # fmt: skip
    return " ".join(map(str, words))


def _heads(x: Tensor, size: int, heads: int = 4) -> Tensor:
    """Queries: 4 samples of 10 tokens."""
    return x[:1, :1].expand(4, 10 * heads * size).reshape(4, heads, 10, size)


def _attention(
    size: int, key_heads: int = 4, mask: bool = False, **options: Any
) -> Callable[[Tensor], Tensor]:
    def attend(x: Tensor) -> Tensor:
        query, key = _heads(x, size), _heads(x, size, key_heads)
        seen = torch.ones(4, 4, 10, 10, dtype=torch.bool, device=x.device).tril() if mask else None
        return F.scaled_dot_product_attention(query, key, key, seen, enable_gqa=key_heads != 4, **options)

    return attend


def _large(x: Tensor, shape: Sequence[int]) -> Tensor:
    return (x[:1, :1] + torch.zeros(tuple(shape), device=x.device)) * 0.5


def _recurrent(kind: str, width: int, deep: int, both: bool) -> Callable[[Tensor], Tensor]:
    def follow(x: Tensor) -> Tensor:
        made = getattr(nn, kind)(16, width, deep, dropout=0.1 * (deep - 1), bidirectional=both).to(x.device)
        found: Tensor = made(_large(x, (12, 4, 16)))[0]
        return found

    return follow


def _convolution(places: int, groups: int, stride: int, turned: bool) -> Callable[[Tensor], Tensor]:
    name = f"conv{'_transpose' * turned}{places}d"

    def convolve(x: Tensor) -> Tensor:
        weight = _large(x, (16, 16 // groups, *[3] * places))
        made = getattr(F, name)(
            _large(x, (4, 16, *[12] * places)), weight, x[0], stride=stride, groups=groups
        )
        assert isinstance(made, Tensor)
        return made

    return convolve


def _matrices(x: Tensor) -> Tensor:
    return x @ x.t() + torch.eye(4, device=x.device)


_OF_MATRICES: Dict[str, Callable[[Tensor], Any]] = {
    "cholesky": torch.linalg.cholesky, "inv": torch.linalg.inv, "det": torch.linalg.det,
    "qr": torch.linalg.qr, "svd": lambda m: torch.linalg.svd(m, full_matrices=False),
    "svdvals": torch.linalg.svdvals, "eigh": torch.linalg.eigh, "eigvalsh": torch.linalg.eigvalsh,
    "lu": torch.linalg.lu_factor, "pinv": torch.linalg.pinv, "exp": torch.linalg.matrix_exp,
    "slogdet": torch.linalg.slogdet, "solve": lambda m: torch.linalg.solve(m, m),
}  # fmt: skip
_CALLS: Dict[str, Callable[[Tensor], Any]] = {
    **{f"{name} of one": lambda x, use=use: use(_matrices(x)) for name, use in _OF_MATRICES.items()},
    **{
        f"{name} of six": lambda x, use=use: use(_matrices(x).expand(6, 4, 4))
        for name, use in _OF_MATRICES.items()
    },
    "attention": _attention(16), "attention of odd heads": _attention(15),
    "causal": _attention(16, is_causal=True), "masked": _attention(16, mask=True),
    "shared keys": _attention(16, 2), "dropped": _attention(16, dropout_p=0.1), "wide heads": _attention(512),
    "all of it": _attention(16, 2, True, dropout_p=0.1, scale=0.5),
    "flat": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "multi margin": lambda x: F.multi_margin_loss(x.detach(), x.detach().argmax(1)),
    "labels margin": lambda x: F.multilabel_margin_loss(x.detach(), torch.zeros_like(x, dtype=torch.int64)),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0), "roll": lambda x: torch.roll(x, (1, 2), (0, 1)),
    "unfold": lambda x: F.unfold(x.view(1, 4, 4, 4), 2), "rms": lambda x: F.rms_norm(x, (16,)),
    "fold": lambda x: F.fold(x.view(1, 16, 4), (3, 3), 2), "softmax": lambda x: F.log_softmax(x.t(), 1),
    "where": lambda x: torch.where(x.detach() > 0, x, 0.0), "rrelu": lambda x: F.rrelu(x, training=True),
    "dropout": lambda x: F.feature_alpha_dropout(x, 0.2),
    "noise": lambda x: x * torch.bernoulli(x.detach().sigmoid()), "median": lambda x: x.median(1),
    "most": lambda x: x.topk(3), "sort": torch.sort, "norm": lambda x: x.norm(dim=0),
    "mean": lambda x: x.mean(1), "spread": torch.var_mean, "maximum": lambda x: x.amax(0),
    "total": lambda x: x.logsumexp(1), "running": lambda x: x.cumsum(1), "products": lambda x: x.cumprod(0),
    "distances": lambda x: torch.cdist(x, x),
    "resized": lambda x: F.interpolate(x.view(1, 4, 4, 4), scale_factor=2, mode="bicubic"),
    "sampled": lambda x: F.grid_sample(x.view(1, 4, 4, 4), x.view(1, 32, 1, 2)[:, :4]),
    "pooled": lambda x: F.max_pool2d(x.view(1, 4, 4, 4), 2), "bag": lambda x: F.embedding_bag(_tokens(x), x),
    "embedding": lambda x: F.embedding(_tokens(x), x, padding_idx=0),
    "gathered": lambda x: x.gather(1, _tokens(x)),
    "put": lambda x: x.index_put((_tokens(x)[0],), x[0], accumulate=True),
    "picked": lambda x: x[_tokens(x)[:, 0]], "kl": lambda x: F.kl_div(x, x.detach().exp()),
    "cross": lambda x: F.cross_entropy(x, _tokens(x)[:, 0]), "transform": lambda x: torch.fft.fft2(x).abs(),
    "stft": lambda x: torch.stft(x, 8, return_complex=True).abs(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x), "outer": lambda x: torch.outer(x[0], x[1]),
    **{
        f"attention of {size}, {heads}, {mask}, {drop}": _attention(size, heads, mask, dropout_p=drop)
        for size in (40, 72, 128, 136, 256, 264) for heads in (1, 4) for mask in (False, True)
        for drop in ((0.0, 0.1) if size == 40 else (0.0,))
    },
    **{
        f"{name} of {shape}": lambda x, name=name, shape=shape: getattr(F, name)(
            _large(x, shape)
        )
        for shape in ((3, 5, 7, 10),) for name in (
            "relu", "gelu", "silu", "elu", "celu", "selu", "mish", "glu", "hardswish", "hardsigmoid",
            "tanhshrink",
            "softplus", "leaky_relu", "logsigmoid", "softsign", "relu6", "hardtanh", "softmin", "normalize",
        )
    },
    **{
        f"{name} of {shape}": lambda x, name=name, shape=shape: getattr(torch, name)(
            _large(x, shape)
        )
        for shape in ((70000,),) for name in (
            "exp", "log1p", "sqrt", "sin", "erf", "abs", "sigmoid", "sum", "mean", "std", "prod", "max",
            "argmax", "sort", "nonzero", "clone", "median", "var",
        )
    },
    **{
        f"{name} of {kind}": lambda x, name=name, kind=kind: getattr(F, name)(
            _large(x, (64, 10)), torch.zeros(64, 10, device=x.device), reduction=kind
        )
        for kind in ("none", "mean", "sum") for name in (
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
            "soft_margin_loss", "poisson_nll_loss", "cross_entropy",
        )
    },
    **{
        f"{'transposed ' * turned}convolution {places}, {groups}, {stride}": _convolution(
            places, groups, stride, turned
        )
        for places in (1, 2, 3) for groups in (1, 4) for stride in (1, 2) for turned in (False, True)
    },
    **{
        f"{name}{places}d": lambda x, name=name, places=places: getattr(F, f"{name}{places}d")(
            _large(x, (2, 4, *[6] * places)), 2
        )
        for places in (1, 2, 3) for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    },
    **{
        f"{kind} of {width}, {deep}, {both}": _recurrent(kind, width, deep, both)
        for kind in ("RNN", "GRU", "LSTM") for width in (16, 600) for deep in (1, 2) for both in (False, True)
    },
    "batch norm": lambda x: F.batch_norm(_large(x, (8, 4, 6, 6)), None, None, training=True),
    "instance norm": lambda x: F.instance_norm(_large(x, (8, 4, 6, 6))),
    "group norm": lambda x: F.group_norm(_large(x, (8, 4, 6, 6)), 2),
    "layer norm": lambda x: F.layer_norm(_large(x, (8, 4, 96)), (96,)),
    "scattered": lambda x: x.scatter_add(1, _tokens(x), x[:, :3]), "chosen": lambda x: x[x.detach() > 0.5],
    "product of batches": lambda x: torch.bmm(_large(x, (8, 64, 32)), _large(x, (8, 32, 128))),
    "large product": lambda x: _large(x, (1000, 512)) @ _large(x, (512, 3000)),
    "linear": lambda x: F.linear(_large(x, (7, 785, 64)), _large(x, (96, 64)), _large(x, (96,))),
    "padded": lambda x: F.pad(_large(x, (2, 4, 6, 6)), (1, 1, 2, 2), mode="reflect"),
    "pairs": lambda x: F.cosine_similarity(x, x.flip(0)),
    "shuffled": lambda x: F.pixel_shuffle(_large(x, (1, 8, 4, 4)), 2),
}  # fmt: skip


def _tokens(x: Tensor) -> Tensor:
    return torch.arange(12, device=x.device).view(4, 3) % 4


class _Call(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.rand(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        found = _CALLS[self.name](self.weight * x)
        many = found if isinstance(found, (tuple, list)) else [found]
        return sum((one.float().sum() for one in many if one.is_floating_point()), x.sum())


class _Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.ModuleList(_Call(name) for name in _CALLS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([call(x) for call in self.calls])


def operators() -> Dict[str, str]:
    """Blocks of single operators, forward and backward: how many, their bytes, a digest of all about them."""
    found = {}
    for precision in ("fp32", "amp-bf16"):
        trace = summarize(
            _Calls(), torch.rand(4, 16), loss=lambda out, _: out.sum(), precision=precision, scalable=False
        ).trace
        assert trace is not None
        for number, name in enumerate(_CALLS):
            sites = [trace.sites[event] for event in trace.events if event >= 0]
            own = [site for site in sites if site.module == f"calls.{number}"]
            digest = sha256(repr(own).encode()).hexdigest()[:8]
            found[f"{name} in {precision}"] = f"{len(own)} {sum(site.bytes_at(4) for site in own)} {digest}"
    return found


def graphs() -> Dict[str, Any]:
    """A sparse graph takes what its entries take, and its product is dense."""
    nodes, entries = 600, 20

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            at = torch.randint(0, nodes, (2, entries))
            self.register_buffer("graph", torch.sparse_coo_tensor(at, torch.ones(entries), (nodes, nodes)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.spmm(self.graph, self.layer(x))

    trace = summarize(Graph(), torch.randn(nodes, 8)).trace
    assert trace is not None
    buffers = sum(s.bytes_at(nodes) for s in trace.sites if s.category == "buffers")
    products = [
        s.bytes_at(nodes)
        for s in trace.sites
        if s.operator in ("aten::mm", "aten::_sparse_addmm", "aten::addmm")
    ]
    return {"buffers": buffers, "product": max(products), "scalable": trace.scalable}


def experts() -> Dict[str, Any]:
    """Rows that each kind of router gives to all its experts together, in products of the hidden size."""
    found = {}
    for make in (fresh_a.moe_where, fresh_a.moe_mask, fresh_a.moe_unique, fresh_a.moe_sort):
        model, batch, step = make(False)
        summary = summarize(model, batch, step=step, batch_size=4, scalable=False)
        assert summary.trace is not None
        # An expert's first layer makes 32 numbers a row; 32 tokens go to two of four experts, in two layers.
        trace = summary.trace
        hidden = [
            trace.sites[event]
            for event in trace.events
            if event >= 0 and trace.sites[event].operator == "aten::addmm"
        ]
        rows = sum(
            site.bytes_at(4) // (4 * 32)
            for site in hidden
            if "experts" in site.module and site.module.endswith(".0")
        )
        found[make.__name__] = {"rows": rows, "warnings": summary.warnings}
    return found


class Phased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def phases() -> Dict[str, Any]:
    """A rollout after the optimizer's step is not the optimizer's."""

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        (x,) = batch
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            kept = [torch.tanh(model(x)) for _ in range(3)]
        del kept

    trace = summarize(Phased(), (torch.randn(4, 8),), step=step).trace
    assert trace is not None
    after = {
        trace.phase_of(i).name
        for i, e in enumerate(trace.events)
        if e >= 0 and "tanh" in trace.sites[e].operator
    }
    categories = {site.category for site in trace.sites if "tanh" in site.operator}
    return {"after": sorted(after), "categories": sorted(categories), "scalable": trace.scalable}


class Numbers(nn.Module):
    """Numbers on the CPU beside tensors on the GPU, and tensors that name things."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("depth", torch.tensor(3))
        self.table = {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(self.depth)):
            x = x.masked_fill(x > 0, torch.tensor(-1.0))
            x = torch.where(x > 0, torch.tensor(2.0), x).clamp(torch.tensor(-3.0), torch.tensor(3.0))
        out: torch.Tensor = self.layer(x)
        best = out.argmax(-1)
        factor = self.table[f"{best[0]}"] + self.table[str(best.tolist()[0])]
        return out * factor


def numbers() -> Dict[str, Any]:
    trace = summarize(Numbers(), torch.randn(4, 8)).trace
    assert trace is not None
    fills = [e for e in trace.events if e >= 0 and trace.sites[e].operator == "aten::masked_fill"]
    return {"way": trace.way, "fills": len(fills)}


class Transforms(nn.Module):
    """A Fourier transform along a dimension, and back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.weight = dim, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        there = torch.fft.rfft(x, dim=self.dim)
        return self.weight * torch.fft.irfft(there, n=x.shape[self.dim], dim=self.dim)


def fourier() -> Dict[str, List[int]]:
    """Bytes of the blocks of the first step's transforms, by the shape of the input and the dimension."""
    found = {}
    for shape, dim in (((4, 96), 1), ((4, 96, 8), 1), ((4, 509), 1), ((4, 1 << 20), 1)):
        trace = summarize(Transforms(dim), torch.empty(*shape), scalable=False).trace
        assert trace is not None
        first = next(phase.event for phase in trace.phases if phase.name == "backward")
        taken = [trace.sites[event] for event in trace.events[:first] if event >= 0]
        found[str(shape)] = [site.bytes_at(4) for site in taken if "_fft_" in site.operator]
    return found


class Selects(nn.Module):
    """Rows by an index, whose gradient comes in another order of dimensions."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned, self.weight = turned, nn.Parameter(torch.ones(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight[torch.arange(400, device=x.device) % 64]
        return (rows.t() if self.turned else rows).clone() * x.sum()


def sums_at_indices() -> Dict[str, List[int]]:
    """Bytes that the gradient of a selection of 400 rows takes for a moment."""
    found = {}
    for turned in (False, True):
        trace = summarize(Selects(turned), torch.randn(4, 8), loss=torch.sum, scalable=False).trace
        assert trace is not None
        sites = [trace.sites[event] for event in trace.events if event >= 0]
        blocks = [
            one.bytes_at(4)
            for one in sites
            if one.operator == "aten::index_put" and one.category == "workspace"
        ]
        found["turned" if turned else "straight"] = blocks[: len(blocks) // 3]
    return found


class OneOfEight(nn.Module):
    """An index whose choices are not known, as one-hot rows: one of eight places each."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.layer = nn.Linear(16, 2), nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        one, two = (self.router(x) > 0).long().unbind(1)
        rows = F.one_hot(3 * one + two, 8)[:, 3].nonzero()[:, 0]
        out: Tensor = self.layer(x[rows])
        return out


def one_hot() -> List[int]:
    """Rows of the layer's products, where there are 800."""
    trace = summarize(OneOfEight(), torch.randn(800, 16), loss=torch.sum).trace
    assert trace is not None
    sizes = [
        site.bytes_at(800)
        for site in trace.sites
        if site.module == "layer" and site.operator == "aten::addmm"
    ]
    return [size // (4 * 32) for size in sizes]


class Periods(nn.Module):
    """Rows as long as the strongest period of a Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        strongest = torch.fft.rfft(x, dim=1).abs().mean(0).mean(-1).topk(1).indices
        period = x.shape[1] // int(strongest.cpu().numpy()[0])
        rows = x[:, : x.shape[1] // period * period].reshape(x.shape[0], -1, period, 8)
        out: Tensor = self.convolution(rows.permute(0, 3, 1, 2))
        return out.mean((2, 3))


class Counting(nn.Module):
    """Its shapes are its own; whether a truth holds, and how large its output is, decides no size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        if bool((out > 0).any()):
            self.largest = out.max().item()
        return out


def read_sizes() -> Dict[str, Any]:
    """Warnings of a model that reads whole numbers, and of one that reads others."""

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        out = model(batch)
        out.sum().backward()
        optimizer.step()
        out.argmax(1).sum().item()  # as a loop counts what was right

    return {
        "periods": list(summarize(Periods(), torch.randn(4, 96, 8)).warnings),
        "counting": list(summarize(Counting(), torch.randn(4, 8), step=step).warnings),
    }


def half() -> Dict[str, Any]:
    """A pure bf16 model is fed bf16, also where a Linear comes first."""

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    sizes = {}
    for name, options in (("loop", {}), ("step", {"step": step})):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        trace = summarize(model, torch.randn(16, 64), precision="bf16", **options).trace  # type: ignore[arg-type]
        assert trace is not None
        sizes[name] = max(s.bytes_at(16) for s in trace.sites if s.operator in ("aten::addmm", "aten::relu"))
    return sizes


def cells() -> Dict[str, Any]:
    """CUDA's fused cells keep both products and their gates."""
    kept = {}
    for kind in (nn.LSTMCell, nn.GRUCell):

        def step(model: Any, batch: Any, optimizer: Any) -> None:
            state = model(batch)
            loss = F.mse_loss(state[0] if isinstance(state, tuple) else state, torch.zeros_like(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        trace = summarize(kind(32, 32), torch.randn(16, 32), step=step).trace
        assert trace is not None
        kept[kind.__name__] = sorted(
            {s.bytes_at(16) for s in trace.sites if s.module == "" and s.category == "activations"}
        )
    return kept


class Language(nn.Module):
    """Returns its loss where it gets targets, and the last token's scores where it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(100, 16), nn.Linear(16, 100)

    def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
        x = self.tokens(idx)
        if targets is None:
            return self.head(x[:, [-1]]), None
        scores = self.head(x)
        return scores, F.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: Any = None) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def losses() -> Dict[str, Any]:
    """Which loss is taken for which batch, and what is said of it."""
    tokens, rows, classes = torch.zeros(4, 8, dtype=torch.int64), torch.randn(4, 8), torch.zeros(4).long()
    found = {}
    for name, model, batch in (
        ("unfilled", Language(), tokens),
        ("filled", Language(), (tokens, tokens)),
        ("pair", nn.Linear(8, 3), (rows, classes)),
        ("regression", nn.Linear(8, 3), [rows, torch.randn(4, 3)]),
        ("unused", Optional(), rows),
    ):
        summary = summarize(model, batch)
        assert summary.trace is not None
        found[name] = [summary.trace.job.loss, *summary.warnings]
    return found


def saved() -> Dict[str, Any]:
    """What `summarize` returns is saved, and handed to `estimate` either way."""
    import tempfile

    from slurm_gpumem import estimate, save_summary

    summary = summarize(nn.Linear(8, 3), (torch.randn(4, 8), torch.zeros(4).long()))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        save_summary(summary, file.name)
        return {"live": estimate(summary).peak_mib, "saved": estimate(file.name).peak_mib}


class First(nn.Module):
    """A first use of a library: which, is said by its argument."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.weight, self.use = nn.Parameter(torch.randn(8, 8)), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.use(self.weight, x)
        return result


def libraries() -> Dict[str, Any]:
    """What the first use of cuBLAS and cuSOLVER leaves, by operator."""
    uses = {
        "mv": lambda w, x: w @ x[0],
        "dot": lambda w, x: w[0] @ x[0],
        "triangular": lambda w, x: torch.linalg.solve_triangular(w, x.t(), upper=False),
        "cholesky": lambda w, x: torch.linalg.cholesky(w * x[0]),
        "solve": lambda w, x: torch.linalg.solve(w, x.t()),
        "solves": lambda w, x: torch.linalg.solve(w.expand(4, 8, 8), x[:, :, None]),
        "product": lambda w, x: w * x[0],
    }
    found = {}
    for name, use in uses.items():
        trace = summarize(First(use), torch.randn(4, 8), optimizer=None, loss="none", scalable=False).trace
        assert trace is not None
        found[name] = sorted(s.operator for s in trace.sites if s.operator in ("cublas", "cusolver"))
    return found


def sparse_states() -> Dict[str, Any]:
    """SparseAdam's entries of one step: as many as there are tokens."""

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    model = nn.EmbeddingBag(50, 4, sparse=True, mode="sum")
    trace = summarize(
        model,
        torch.zeros(3, 10, dtype=torch.int64),
        step=step,
        optimizer=lambda parameters: torch.optim.SparseAdam(parameters),
        scalable=False,
    ).trace
    assert trace is not None
    return {
        "way": trace.way,
        "masked": sorted({s.bytes_at(3) for s in trace.sites if "sparse_mask" in s.operator}),
    }


def layers_in_functions() -> Dict[str, Any]:
    """Layers and weights that are reached through functions: pure bf16 fails on those that stayed behind."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = self.layer = nn.Linear(64, 64)
            gain = self.gain = nn.Parameter(torch.ones(64))
            again = [layer]
            self.steps = [lambda x: layer(x) * gain, lambda x: again[0](x).relu()]
            layer.register_forward_hook(lambda module, args, out: out + gain)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for step in self.steps:
                x = step(x)
            return x

    model = Steps()
    trace = summarize(model, torch.randn(16, 64), precision="bf16").trace
    assert trace is not None
    own = model.steps[0].__closure__
    return {
        "way": trace.way,
        "kept": own is not None and {cell.cell_contents for cell in own} == {model.layer, model.gain},
    }


def main(names: List[str]) -> None:
    warnings.simplefilter("ignore")
    if names == ["--write"]:
        kept = {one.__name__: one() for one in (few_steps, operators, other_steps)}
        rows = json.dumps(kept, indent=0)
        Path(__file__).with_name("expected.json").write_text(rows + "\n")
        return
    print(json.dumps({name: globals()[name]() for name in names}))


if __name__ == "__main__":
    main(sys.argv[1:])
