"""Steps over [batch, time, width] that a generated block may take; each registers its modules on the block."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[Tensor], Tensor]
Make = Callable[[nn.Module, str, random.Random, int], Step]
_ACTS: Tuple[Callable[[Tensor], Tensor], ...] = (F.relu, F.gelu, F.silu, torch.tanh, F.elu, F.softplus)


def _add(block: nn.Module, name: str, module: nn.Module) -> Any:
    block.add_module(name, module)
    return module


def _linear(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    wide = rng.choice((1, 2, 4))
    up, down = (
        _add(block, name + "_up", nn.Linear(d, wide * d)),
        _add(block, name + "_down", nn.Linear(wide * d, d)),
    )
    act, p = rng.choice(_ACTS), rng.choice((0.0, 0.0, 0.1))
    return lambda x: down(F.dropout(act(up(x)), p)) if p else down(act(up(x)))


def _gated(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    both, act = _add(block, name, nn.Linear(d, 2 * d)), rng.choice((torch.sigmoid, F.silu, F.gelu))

    def step(x: Tensor) -> Tensor:
        a, g = both(x).chunk(2, -1)
        return a * act(g)

    return step


def _attention(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    heads, causal, style = (
        rng.choice((1, 2, 4, 8)),
        rng.random() < 0.5,
        rng.choice(("einsum", "matmul", "fused")),
    )
    qkv, drop = _add(block, name, nn.Linear(d, 3 * d)), rng.choice((0.0, 0.1))

    def step(x: Tensor) -> Tensor:
        q, k, v = qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        if style == "fused":
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
        s = torch.einsum("bhid,bhjd->bhij", q, k) if style == "einsum" else q @ k.transpose(-1, -2)
        s = s * q.size(-1) ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(x.size(1), x.size(1), device=x.device).triu(1) > 0, float("-inf"))
        a = F.dropout(s.softmax(-1), drop) if drop else s.softmax(-1)
        return (a.to(v.dtype) @ v).transpose(1, 2).flatten(2)

    return step


def _convolution(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    k, depthwise = rng.choice((3, 5, 7)), rng.random() < 0.5
    conv = _add(block, name, nn.Conv1d(d, d, k, padding=k // 2, groups=d if depthwise else 1))
    return lambda x: F.relu(conv(x.transpose(1, 2))).transpose(1, 2)


def _running_mean(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    def step(x: Tensor) -> Tensor:
        n = torch.arange(1, x.size(1) + 1, device=x.device)[:, None]
        return (x.cumsum(1) / n).to(x.dtype)

    return step


def _pairs(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    k = rng.choice((4, 8, 16))
    a, b = _add(block, name + "_a", nn.Linear(d, k)), _add(block, name + "_b", nn.Linear(d, k))
    out, act = _add(block, name + "_o", nn.Linear(k, d)), rng.choice(_ACTS)
    return lambda x: out(act(a(x).unsqueeze(2) + b(x).unsqueeze(1)).mean(2).to(x.dtype))


def _cell_loop(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    every = rng.choice((1, 2, 4))
    cell = _add(block, name, nn.GRUCell(d, d))

    def step(x: Tensor) -> Tensor:
        h, outs = torch.zeros_like(x[:, 0]), []
        for t in range(0, x.size(1), every):
            h = cell(x[:, t], h)
            outs.append(h)
        return torch.stack(outs, 1).repeat_interleave(every, 1)[:, : x.size(1)].to(x.dtype)

    return step


def _recurrent(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    rnn = _add(block, name, rng.choice((nn.LSTM, nn.GRU))(d, d // 2, batch_first=True, bidirectional=True))
    return lambda x: rnn(x)[0]


def _fourier(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    keep = rng.choice((8, 16, 32))
    w = nn.Parameter(torch.randn(keep, d, 2) * 0.02)
    block.register_parameter(name, w)

    def step(x: Tensor) -> Tensor:
        f = torch.fft.rfft(x.float(), dim=1)
        n = min(keep, f.size(1))
        low = f[:, :n] * torch.view_as_complex(w.float().contiguous())[:n]
        return torch.fft.irfft(torch.cat([low, f[:, n:]], 1), n=x.size(1), dim=1).to(x.dtype)

    return step


def _codebook(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    book = nn.Parameter(torch.randn(rng.choice((64, 256, 1024)), d))
    block.register_parameter(name, book)
    hard = rng.random() < 0.4

    def step(x: Tensor) -> Tensor:
        dist = x.pow(2).sum(-1, keepdim=True) - 2 * x @ book.t() + book.pow(2).sum(-1)
        if hard:
            return x + (book[dist.argmin(-1)] - x).detach() + 0 * dist.mean()
        return F.softmax(-dist, -1).to(book.dtype) @ book

    return step


def _kernel(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    proj, p = _add(block, name, nn.Linear(d, d)), rng.choice((1.0, 2.0))

    def step(x: Tensor) -> Tensor:
        dist = torch.cdist(x.float(), x.float()) ** p
        k = torch.exp(-dist / (dist.mean((1, 2), keepdim=True) + 1e-3))
        v = proj(x)
        return (k / k.sum(-1, keepdim=True)).to(v.dtype) @ v

    return step


def _shifts(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    n = rng.choice((2, 3, 5))
    mix = _add(block, name, nn.Linear(n * d, d))
    return lambda x: mix(torch.cat([F.pad(x, (0, 0, i, 0))[:, : x.size(1)] for i in range(n)], -1))


def _norm(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    gain, dim = nn.Parameter(torch.ones(d)), rng.choice((1, -1))
    block.register_parameter(name, gain)
    if rng.random() < 0.4:
        return _add(block, name + "_m", nn.LayerNorm(d))  # type: ignore[no-any-return]
    return lambda x: ((x - x.mean(dim, keepdim=True)) / (x.var(dim, keepdim=True) + 1e-5).sqrt() * gain).to(
        x.dtype
    )


def _pool(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    score = _add(block, name, nn.Linear(d, 1))
    return lambda x: x * torch.sigmoid((score(x).softmax(1) * x).sum(1, keepdim=True)).to(x.dtype)


def _nearest(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    k, out = rng.choice((2, 4, 8)), _add(block, name, nn.Linear(2 * d, d))

    def step(x: Tensor) -> Tensor:
        top = (x @ x.transpose(1, 2)).topk(min(k, x.size(1)), -1)[1]
        flat = top.flatten(1).unsqueeze(-1).expand(-1, -1, x.size(-1))
        near = x.gather(1, flat).view(*top.shape, -1)
        edge = torch.cat([near - x.unsqueeze(2), x.unsqueeze(2).expand_as(near)], -1)
        return F.relu(out(edge)).amax(2)

    return step


def _experts(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    n = rng.choice((2, 4, 8))
    gate, w = _add(block, name + "_g", nn.Linear(d, n)), nn.Parameter(torch.randn(n, d, d) * 0.02)
    block.register_parameter(name + "_w", w)
    return lambda x: torch.einsum("btd,ndf,btn->btf", x, w, gate(x).softmax(-1).to(x.dtype))


def _rescale(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    f, conv = rng.choice((2, 4)), _add(block, name, nn.Conv1d(d, d, 3, padding=1))

    def step(x: Tensor) -> Tensor:
        y = F.gelu(conv(F.avg_pool1d(x.transpose(1, 2), f)))
        return x + F.interpolate(y, size=x.size(1), mode="linear", align_corners=False).transpose(1, 2).to(
            x.dtype
        )

    return step


def _state(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    n = rng.choice((4, 8, 16))
    k, q = _add(block, name + "_k", nn.Linear(d, n)), _add(block, name + "_q", nn.Linear(d, n))
    return lambda x: torch.einsum(
        "btn,btnd->btd",
        q(x).sigmoid(),
        (k(x).softmax(-1).unsqueeze(-1) * x.unsqueeze(2)).cumsum(1).to(x.dtype),
    ).to(x.dtype)


def _members(block: nn.Module, name: str, rng: random.Random, d: int) -> Step:
    acts = rng.sample(_ACTS, 3)
    lin = _add(block, name, nn.Linear(d, d))

    def step(x: Tensor) -> Tensor:
        y = lin(x)
        return torch.stack([act(y) for act in acts]).mean(0).to(x.dtype)

    return step


SERIES_STEPS: Dict[str, Tuple[Make, float]] = {
    "fc": (_linear, 3),
    "glu": (_gated, 2),
    "att": (_attention, 3),
    "conv": (_convolution, 2),
    "mean": (_running_mean, 1),
    "pair": (_pairs, 1),
    "cell": (_cell_loop, 0.7),
    "rnn": (_recurrent, 1),
    "fft": (_fourier, 1),
    "codes": (_codebook, 1),
    "kern": (_kernel, 1),
    "shift": (_shifts, 1),
    "norm": (_norm, 2),
    "pool": (_pool, 1),
    "knn": (_nearest, 1),
    "moe": (_experts, 1),
    "scale": (_rescale, 1),
    "state": (_state, 1),
    "acts": (_members, 1),
}
