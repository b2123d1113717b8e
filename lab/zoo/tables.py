"""Recommenders, tabular networks, graphs, points and operators, written by hand."""

from __future__ import annotations

from typing import List

import torch
from torch import Tensor, nn


def _stack(widths: List[int]) -> nn.Sequential:
    parts: List[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Dlrm(nn.Module):
    """Embedding tables, a bottom and a top MLP, and pairwise products between them."""

    def __init__(self, tables: int, rows: int, width: int, dense: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _stack([dense, 512, 256, width])
        pairs = (tables + 1) * tables // 2
        self.top = _stack([pairs + width, 1024, 1024, 512, 256, 1])

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *[t(sparse[:, i]) for i, t in enumerate(self.tables)]], 1)
        products = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(rows.shape[1], rows.shape[1], -1, device=dense.device)
        out: Tensor = self.top(torch.cat([bottom, products[:, i, j]], 1)).squeeze(1)
        return out


class DeepFm(nn.Module):
    """Factorization machine and an MLP over the same embeddings."""

    def __init__(self, tables: int, rows: int, width: int, dense: int = 13) -> None:
        super().__init__()
        self.embed, self.weight = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        self.deep = nn.Sequential(
            nn.Linear(tables * width + dense, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(400, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.3), nn.Linear(400, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        rows = self.embed(sparse)
        second = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1)
        deep = self.deep(torch.cat([rows.flatten(1), dense], 1)).squeeze(1)
        out: Tensor = self.weight(sparse).sum((1, 2)) + second + deep
        return out


class NeuralMf(nn.Module):
    """Neural matrix factorization of users and items."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 2 * width), nn.Embedding(items, 2 * width)
        self.mlp = _stack([2 * width, 256, 128, 64])
        self.head = nn.Linear(width + 64, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        u1, u2 = self.users(users).chunk(2, 1)
        i1, i2 = self.items(items).chunk(2, 1)
        out: Tensor = self.head(torch.cat([u1 * i1, self.mlp(torch.cat([u2, i2], 1))], 1)).squeeze(1)
        return out


class TabularResNet(nn.Module):
    """Residual MLP blocks with batch norm over table columns."""

    def __init__(self, features: int, width: int, blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width),
                nn.Linear(width, 2 * width),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Linear(2 * width, width),
            )
            for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(x)
        return out


class FeatureTransformer(nn.Module):
    """Each column becomes a token; a Transformer encoder mixes them."""

    def __init__(self, features: int, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, width))
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True), layers
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, :, None] * self.weight
        out: Tensor = self.head(self.body(torch.cat([self.first.expand(len(x), -1, -1), tokens], 1))[:, 0])
        return out


def deep_mlp(widths: List[int]) -> nn.Module:
    """A plain regression MLP."""
    return _stack(widths)


class Nerf(nn.Module):
    """The coordinate network of a radiance field: eight wide layers with a skip."""

    def __init__(self, width: int = 256, encoded: int = 63, outputs: int = 4) -> None:
        super().__init__()
        self.first = _stack([encoded, width, width, width, width])
        self.second = _stack([width + encoded, width, width, width, outputs])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.cat([torch.relu(self.first(x)), x], 1))
        return out


class GraphNet(nn.Module):
    """Graph convolution, GraphSAGE or attention by scatter over an edge list."""

    def __init__(self, kind: str, features: int, width: int, layers: int, classes: int = 40) -> None:
        super().__init__()
        self.kind = kind
        widths = [features, *[width] * (layers - 1), classes]
        self.linears = nn.ModuleList(
            nn.Linear(a * (2 if kind == "sage" else 1), b) for a, b in zip(widths, widths[1:])
        )
        self.scores = nn.ModuleList(nn.Linear(2 * b, 1) for b in widths[1:]) if kind == "gat" else None
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1).to(x.dtype)[:, None]
        for i, linear in enumerate(self.linears):
            if self.kind == "sage":
                mean = torch.zeros_like(x).index_add(0, target, x[source]) / degree
                x = linear(torch.cat([x, mean], 1))
            else:
                h = linear(x)
                messages = h[source]
                if self.scores is not None:
                    score = torch.sigmoid(self.scores[i](torch.cat([messages, h[target]], 1)))
                    messages = messages * score
                x = torch.zeros_like(h).index_add(0, target, messages) / degree
            if i < len(self.linears) - 1:
                x = self.drop(torch.relu(x))
        return x


class PointNet(nn.Module):
    """Shared MLPs over points and a max over the set."""

    def __init__(self, width: int = 64, classes: int = 40) -> None:
        super().__init__()
        parts: List[nn.Module] = []
        for a, b in zip([3, width, width, 2 * width], [width, width, 2 * width, 16 * width]):
            parts += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
        self.points = nn.Sequential(*parts)
        self.head = nn.Sequential(
            nn.Linear(16 * width, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(512, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.points(x).amax(-1))
        return out


class FourierOperator(nn.Module):
    """Fourier neural operator: spectral convolutions over a field."""

    def __init__(self, channels: int, width: int, modes: int, layers: int) -> None:
        super().__init__()
        self.modes = modes
        self.first, self.last = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.spectral = nn.ParameterList(
            nn.Parameter(torch.zeros(width, width, modes, modes, 2)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        m = self.modes
        for local, weight in zip(self.local, self.spectral):
            spectrum = torch.fft.rfft2(x.float())
            mixed = torch.einsum(
                "bixy,ioxy->boxy", spectrum[:, :, :m, :m], torch.view_as_complex(weight.float())
            )
            full = torch.zeros_like(spectrum)
            full[:, :, :m, :m] = mixed
            x = nn.functional.gelu(local(x) + torch.fft.irfft2(full, s=x.shape[-2:]).to(x.dtype))
        out: Tensor = self.last(x)
        return out
