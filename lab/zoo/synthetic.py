"""The three synthetic families (MLP, CNN, Transformer) and the ranges they are drawn from.

Ranges and shapes follow the published tables for these families: MLPs of 2 to 12 linear layers,
CNNs of 1 to 29 convolutions, Transformers of 2 to 39 blocks; each draw is uniform.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = ("ReLU", "ELU", "Tanh", "LeakyReLU", "GELU", "SiLU", "Sigmoid", "SELU", "PReLU", "Mish")
MLP_SHAPES = ("pyramid", "uniform", "bottleneck", "gradual")
CNN_SHAPES = (*MLP_SHAPES, "hourglass", "residual", "dense")
TRANSFORMER_KINDS = ("encoder", "decoder", "hybrid")


def mlp(widths: List[int], activation: str, norm: bool, dropout: float) -> nn.Module:
    """Linear layers of these widths, with batch norm and dropout between them if asked for."""
    layers: List[nn.Module] = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(widths) - 2:
            if norm:
                layers.append(nn.BatchNorm1d(b))
            layers.append(getattr(nn, activation)())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.body, self.skip = body, skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.skip(x)
        return out


class _Dense(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def cnn(
    channels: int,
    filters: List[int],
    kernel: int,
    pool_every: int,
    shape: str,
    activation: str,
    norm: bool,
    dropout: float,
    classes: int,
) -> nn.Module:
    """Convolutions of these filter counts, pooled now and then, and one linear layer."""
    layers: List[nn.Module] = []
    width, pools = channels, 0
    for i, count in enumerate(filters):
        body: List[nn.Module] = [nn.Conv2d(width, count, kernel, padding="same")]
        if norm:
            body.append(nn.BatchNorm2d(count))
        body.append(getattr(nn, activation)())
        if dropout:
            body.append(nn.Dropout2d(dropout))
        if shape == "residual" and i:
            layers.append(
                _Residual(
                    nn.Sequential(*body), nn.Identity() if width == count else nn.Conv2d(width, count, 1)
                )
            )
        elif shape == "dense" and i:
            layers.append(_Dense(nn.Sequential(*body)))
            count += width
        else:
            layers.extend(body)
        width = count
        if pool_every and (i + 1) % pool_every == 0 and pools < 4:
            layers.append(nn.MaxPool2d(2))
            pools += 1
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class _Block(nn.Module):
    """Pre-norm attention and feed-forward with dropout; `cross` attends to a memory as well."""

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float, causal: bool, cross: bool
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.cross = heads, causal, cross
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.drop1, self.drop2, self.drop3 = nn.Dropout(dropout), nn.Dropout(dropout), nn.Dropout(dropout)
        self.act = nn.GELU()

    def forward(self, x: Tensor, memory: Any = None) -> Tensor:
        b, n, c = x.shape
        h = self.norm1(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        if self.cross and memory is not None:
            k, v = self.qkv(memory).chunk(3, -1)[1:]
        q, k, v = (t.view(b, t.shape[1], self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop1(self.proj(a.transpose(1, 2).reshape(b, n, c)))
        out: Tensor = x + self.drop3(self.fc2(self.drop2(self.act(self.fc1(self.norm2(x))))))
        return out


class _Transformer(nn.Module):
    def __init__(
        self,
        kind: str,
        vocabulary: int,
        width: int,
        heads: int,
        hidden: int,
        depth: int,
        length: int,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        first = depth if kind != "hybrid" else depth // 2
        self.blocks = nn.ModuleList(
            _Block(width, heads, hidden, dropout, causal=kind == "decoder", cross=False) for _ in range(first)
        )
        self.decoder = nn.ModuleList(
            _Block(width, heads, hidden, dropout, causal=False, cross=True) for _ in range(depth - first)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        memory = x
        for block in self.decoder:
            x = block(x, memory)
        out: Tensor = self.head(x.mean(1))
        return out


def transformer(**args: Any) -> nn.Module:
    """Encoder, decoder-only or hybrid blocks over an embedding, with a classifier on the mean."""
    return _Transformer(**args)


def draw_mlp(rng: random.Random) -> Dict[str, Any]:
    """One MLP of the published ranges: its arguments, input size, classes and batch."""
    shape, depth = rng.choice(MLP_SHAPES), rng.randint(2, 12)
    size, outputs = rng.randint(4, 4096), rng.randint(1, 1024)
    base = rng.randint(4, 8192)
    inner = depth - 1
    if shape == "uniform":
        hidden = [base] * inner
    elif shape == "pyramid":
        hidden = [max(base >> i, 2) for i in range(inner)]
    elif shape == "bottleneck":
        middle = inner // 2
        hidden = [
            max(base >> (2 if abs(i - middle) == 1 else 4 if i == middle else 0), 2) for i in range(inner)
        ]
    else:
        hidden = [max(int(base + (outputs - base) * i / depth), 2) for i in range(inner)]
    args = {
        "widths": [size, *hidden, outputs],
        "activation": rng.choice(ACTIVATIONS),
        "norm": rng.random() < 0.5,
        "dropout": rng.choice((0.0, 0.1, 0.3, 0.5)),
    }
    return {
        "args": args,
        "size": size,
        "task_args": {"classes": outputs},
        "batch": rng.randint(4, 1024),
        "shape": shape,
    }


def draw_cnn(rng: random.Random) -> Dict[str, Any]:
    """One CNN of the published ranges."""
    shape, depth, base = rng.choice(CNN_SHAPES), rng.randint(1, 29), rng.randint(16, 512)
    if shape in ("uniform", "residual"):
        filters = [base] * depth
    elif shape == "pyramid":
        filters = [min(max(base // 8, 16) << (i * 4 // depth), 512) for i in range(depth)]
    elif shape == "bottleneck":
        filters = [base if i % 3 != 1 else max(base // 4, 16) for i in range(depth)]
    elif shape == "gradual":
        filters = [16 + (base - 16) * (i + 1) // depth for i in range(depth)]
    elif shape == "hourglass":
        filters = [
            max(int(base * (0.25 + 0.75 * abs(2 * i / max(depth - 1, 1) - 1))), 16) for i in range(depth)
        ]
    else:
        filters = [base, *[max(base // 8, 16)] * (depth - 1)]
    channels, classes = rng.choice((1, 3)), rng.randint(2, 22000)
    args = {
        "channels": channels,
        "filters": filters,
        "kernel": rng.choice((1, 2, 3, 3, 3, 5, 7)),
        "pool_every": rng.choice((0, 1, 2, 3, 4, 6)),
        "shape": shape,
        "activation": rng.choice(ACTIVATIONS),
        "norm": rng.random() < 0.5,
        "dropout": rng.choice((0.0, 0.1, 0.3, 0.5)),
        "classes": classes,
    }
    size = rng.randint(32, 224)
    return {
        "args": args,
        "size": size,
        "task_args": {"channels": channels, "classes": classes},
        "batch": rng.randint(2, 62),
        "shape": shape,
    }


def draw_transformer(rng: random.Random) -> Dict[str, Any]:
    """One Transformer of the published ranges."""
    heads = rng.choice((2, 4, 8, 12, 16))
    width = max(rng.randint(128, 2048) // (8 * heads), 1) * 8 * heads
    length, vocabulary = rng.choice((128, 256, 512, 1024)), rng.randint(50_000, 1_000_000)
    kind, classes = rng.choice(TRANSFORMER_KINDS), rng.randint(2, 1000)
    args = {
        "kind": kind,
        "vocabulary": vocabulary,
        "width": width,
        "heads": heads,
        "hidden": int(width * rng.uniform(2, 4)) // 8 * 8,
        "depth": rng.randint(2, 39),
        "length": length,
        "dropout": round(rng.uniform(0.1, 0.5), 2),
        "classes": classes,
    }
    return {
        "args": args,
        "size": length,
        "task_args": {"vocabulary": vocabulary, "classes": classes},
        "batch": rng.randint(1, 128),
        "shape": kind,
    }
