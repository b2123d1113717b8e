"""Steps over [batch, channels, height, width] that a generated block may take."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[Tensor], Tensor]
Make = Callable[[nn.Module, str, random.Random, int], Step]
_ACTS: Tuple[Callable[[Tensor], Tensor], ...] = (F.relu, F.leaky_relu, F.silu, F.gelu, F.hardswish, F.mish)


def _add(block: nn.Module, name: str, module: nn.Module) -> Any:
    block.add_module(name, module)
    return module


def _conv(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    k, act = rng.choice((1, 3, 3, 5)), rng.choice(_ACTS)
    conv = _add(block, name, nn.Conv2d(c, c, k, padding=k // 2, bias=False))
    bn = _add(block, name + "_bn", nn.BatchNorm2d(c)) if rng.random() < 0.6 else nn.Identity()
    return lambda x: act(bn(conv(x)))


def _bottleneck(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    e, act = rng.choice((2, 4)), rng.choice(_ACTS)
    up, dw = (
        _add(block, name + "_u", nn.Conv2d(c, e * c, 1)),
        _add(block, name + "_d", nn.Conv2d(e * c, e * c, 3, 1, 1, groups=e * c)),
    )
    out = _add(block, name + "_o", nn.Conv2d(e * c, c, 1))
    return lambda x: out(act(dw(act(up(x)))))


def _squeeze(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    a, b = (
        _add(block, name + "_a", nn.Linear(c, max(c // 4, 4))),
        _add(block, name + "_b", nn.Linear(max(c // 4, 4), c)),
    )
    return lambda x: x * torch.sigmoid(b(F.relu(a(x.mean((2, 3))))))[..., None, None]


def _dense(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    n = rng.randint(2, 4)
    convs = [_add(block, f"{name}_{i}", nn.Conv2d(c * (i + 1), c, 3, padding=1)) for i in range(n)]

    def step(x: Tensor) -> Tensor:
        feats = [x]
        for conv in convs:
            feats.append(F.relu(conv(torch.cat(feats, 1))))
        return feats[-1]

    return step


def _down_up(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    conv, mode = _add(block, name, nn.Conv2d(2 * c, c, 3, padding=1)), rng.choice(("nearest", "bilinear"))
    inner = _add(block, name + "_i", nn.Conv2d(c, c, 3, padding=1))

    def step(x: Tensor) -> Tensor:
        low = F.relu(inner(F.max_pool2d(x, 2)))
        up = F.interpolate(low, size=x.shape[-2:], mode=mode)
        return F.relu(conv(torch.cat([x, up], 1)))

    return step


def _local(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    k, q = rng.choice((3, 5)), _add(block, name, nn.Conv2d(c, c, 1))

    def step(x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        u = F.unfold(x, k, padding=k // 2).view(B, C, k * k, H, W)
        a = (q(x).unsqueeze(2) * u).sum(1, keepdim=True).softmax(2)
        return (a * u).sum(2).to(x.dtype)

    return step


def _everywhere(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    f = rng.choice((4, 8))
    qkv = _add(block, name, nn.Conv2d(c, 3 * c, 1))

    def step(x: Tensor) -> Tensor:
        low = F.avg_pool2d(x, f)
        q, k, v = qkv(low).flatten(2).chunk(3, 1)
        y = torch.einsum("bij,bcj->bci", torch.einsum("bci,bcj->bij", q, k).softmax(-1).to(v.dtype), v)
        return x + F.interpolate(y.view_as(low), size=x.shape[-2:]).to(x.dtype)

    return step


def _channels(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    scale = nn.Parameter(torch.ones(1))
    block.register_parameter(name, scale)

    def step(x: Tensor) -> Tensor:
        f = x.flatten(2)
        a = torch.softmax(f @ f.transpose(1, 2) / f.size(-1), -1)
        return x + scale * (a.to(f.dtype) @ f).view_as(x)

    return step


def _shuffle(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    conv = _add(block, name, nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4))
    return lambda x: F.pixel_shuffle(F.relu(conv(F.pixel_unshuffle(x, 2))), 2)


def _fourier(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    w = nn.Parameter(torch.randn(2, c, 1, 1))
    block.register_parameter(name, w)

    def step(x: Tensor) -> Tensor:
        f = torch.fft.rfft2(x.float(), norm="ortho")
        g = torch.complex(F.relu(f.real * w[0].float()), f.imag * w[1].float())
        return torch.fft.irfft2(g, s=x.shape[-2:], norm="ortho").to(x.dtype)

    return step


def _norm(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    g = nn.Parameter(torch.ones(c, 1, 1))
    block.register_parameter(name, g)
    dims = rng.choice(((2, 3), (1,), (0, 2, 3)))

    def step(x: Tensor) -> Tensor:
        mean, var = x.mean(dims, keepdim=True), x.var(dims, keepdim=True, unbiased=False)
        return ((x - mean) * torch.rsqrt(var + 1e-5) * g).to(x.dtype)

    return step


def _gate(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    both = _add(block, name, nn.Conv2d(c, 2 * c, 3, padding=1))

    def step(x: Tensor) -> Tensor:
        a, b = both(x).chunk(2, 1)
        return torch.tanh(a) * torch.sigmoid(b)

    return step


def _warp(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    flow = _add(block, name, nn.Conv2d(c, 2, 3, padding=1))

    def step(x: Tensor) -> Tensor:
        theta = torch.eye(2, 3, device=x.device).expand(x.size(0), -1, -1)
        grid = (
            F.affine_grid(theta, list(x.shape), align_corners=False)
            + 0.05 * flow(x).permute(0, 2, 3, 1).float()
        )
        return F.grid_sample(x.float(), grid, align_corners=False).to(x.dtype)

    return step


def _branches(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    ks = rng.sample((1, 3, 5, 7), rng.randint(2, 3))
    convs = [_add(block, f"{name}_{k}", nn.Conv2d(c, c, k, padding=k // 2)) for k in ks]
    how = rng.choice(("max", "mean", "select"))
    pick = _add(block, name + "_s", nn.Linear(c, len(ks))) if how == "select" else None

    def step(x: Tensor) -> Tensor:
        ys = torch.stack([F.relu(conv(x)) for conv in convs], 1)
        if pick is not None:
            w = pick(ys.sum(1).mean((2, 3)).to(x.dtype)).softmax(-1)
            return (ys * w[:, :, None, None, None]).sum(1).to(x.dtype)
        return ys.amax(1) if how == "max" else ys.mean(1)

    return step


def _noise(block: nn.Module, name: str, rng: random.Random, c: int) -> Step:
    size = rng.choice((0.01, 0.1))
    return lambda x: x + size * torch.randn_like(x) * x.detach().abs().amax((2, 3), keepdim=True)


IMAGE_STEPS: Dict[str, Tuple[Make, float]] = {
    "conv": (_conv, 4),
    "mb": (_bottleneck, 1.5),
    "se": (_squeeze, 1.5),
    "dense": (_dense, 1),
    "updown": (_down_up, 1),
    "local": (_local, 0.7),
    "nonlocal": (_everywhere, 1),
    "gram": (_channels, 1),
    "shuffle": (_shuffle, 1),
    "fft": (_fourier, 0.7),
    "norm": (_norm, 1.5),
    "gate": (_gate, 1),
    "warp": (_warp, 0.7),
    "branch": (_branches, 1.5),
    "noise": (_noise, 0.5),
}
