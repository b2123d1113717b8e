"""Tables, clicks, points, graphs and fields: networks written from papers with functional calls."""

from __future__ import annotations

from typing import List

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CrossNetwork(nn.Module):
    """Deep and cross: explicit feature products beside an MLP, and a wide linear part."""

    def __init__(self, tables: int, rows: int, width: int, crosses: int = 4, dense: int = 13) -> None:
        super().__init__()
        self.embed, self.wide = nn.EmbeddingBag(rows, width, mode="sum"), nn.Embedding(rows, 1)
        self.fields = nn.Embedding(rows, width)
        total = tables * width + width + dense
        self.cross = nn.ModuleList(nn.Linear(total, total) for _ in range(crosses))
        self.deep = nn.ModuleList(nn.Linear(a, b) for a, b in zip([total, 1024, 512], [1024, 512, 256]))
        self.head = nn.Linear(total + 256, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        start = torch.cat([self.fields(sparse).flatten(1), self.embed(sparse), torch.log1p(dense.abs())], 1)
        x = h = start
        for cross in self.cross:
            x = start * cross(x) + x
        for layer in self.deep:
            h = F.dropout(F.relu(layer(h)), 0.2, self.training)
        out: Tensor = self.head(torch.cat([x, h], 1)).squeeze(1) + self.wide(sparse).sum((1, 2))
        return out


class TabTransformer(nn.Module):
    """Columns as tokens through attention written as batched products, the rest through an MLP."""

    def __init__(self, features: int, width: int, heads: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.heads = heads
        self.weight, self.bias = (nn.Parameter(torch.zeros(features, width)) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.glu = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.fc1, self.fc2 = nn.Linear(features * width + features, 512), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unsqueeze(-1) * self.weight + self.bias
        b, n, c = tokens.shape
        for i, qkv in enumerate(self.qkv):
            q, k, v = qkv(tokens).reshape(b, n, 3 * self.heads, -1).permute(0, 2, 1, 3).chunk(3, 1)
            q, k, v = (t.reshape(b * self.heads, n, -1) for t in (q, k, v))
            weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / (c // self.heads) ** 0.5, 2)
            mixed = torch.bmm(weights, v).view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, c)
            tokens = self.norms[2 * i](tokens + mixed)
            tokens = self.norms[2 * i + 1](tokens + self.down[i](F.glu(self.glu[i](tokens), -1)))
        out: Tensor = self.fc2(F.selu(self.fc1(torch.cat([tokens.flatten(1), x], 1))))
        return out


class ExpertMixture(nn.Module):
    """A dense mixture of experts: all experts as one einsum, weighted by a softmax gate."""

    def __init__(self, features: int, width: int, experts: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.up = nn.ParameterList(
            nn.Parameter(torch.zeros(experts, width, 2 * width)) for _ in range(layers)
        )
        self.down = nn.ParameterList(
            nn.Parameter(torch.zeros(experts, 2 * width, width)) for _ in range(layers)
        )
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.mish(self.first(x))
        for up, down, gate in zip(self.up, self.down, self.gates):
            share = F.softmax(gate(x), -1)
            h = F.relu(torch.einsum("bi,eij->bej", x, up))
            x = x + torch.einsum("bej,eji,be->bi", h, down, share)
        out: Tensor = self.head(x)
        return out


class PointSets(nn.Module):
    """Like PointNet++: neighbourhoods by distance, shared MLPs over them, max over the neighbours."""

    def __init__(self, width: int = 64, neighbours: int = 16, classes: int = 40) -> None:
        super().__init__()
        self.neighbours = neighbours
        widths = [3, width, 2 * width, 4 * width]
        self.one = nn.ModuleList(nn.Conv2d(a + 3, b, 1) for a, b in zip(widths, widths[1:]))
        self.two = nn.ModuleList(nn.Conv2d(b, b, 1) for b in widths[1:])
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.fc1, self.fc2 = nn.Linear(widths[-1], 256), nn.Linear(256, classes)

    def forward(self, points: Tensor) -> Tensor:
        place, x = points.transpose(1, 2), points
        for one, two, norm in zip(self.one, self.two, self.norms):
            centres = place[:, ::4]
            near = torch.cdist(centres.float(), place.float()).topk(self.neighbours, largest=False).indices
            b, m, k = near.shape
            index = near.view(b, m * k, 1)
            around = torch.gather(place, 1, index.expand(-1, -1, 3)).view(b, m, k, 3) - centres.unsqueeze(2)
            features = torch.gather(x.transpose(1, 2), 1, index.expand(-1, -1, x.size(1))).view(b, m, k, -1)
            h = torch.cat([around, features], -1).permute(0, 3, 1, 2)
            x = F.relu(norm(two(F.relu(one(h))))).max(-1)[0]
            place = centres
        out: Tensor = self.fc2(F.dropout(F.relu(self.fc1(x.max(-1)[0])), 0.4, self.training))
        return out


class GraphIsomorphism(nn.Module):
    """GIN: sums over neighbours through an MLP, all layers' states joined for the classifier."""

    def __init__(self, features: int, width: int, layers: int, classes: int = 40) -> None:
        super().__init__()
        steps = [features, *[width] * layers]
        self.one = nn.ModuleList(nn.Linear(a, width) for a in steps[:-1])
        self.two = nn.ModuleList(nn.Linear(width, width) for _ in steps[1:])
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in steps[1:])
        self.eps = nn.Parameter(torch.zeros(layers))
        self.head = nn.Linear(sum(steps), classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        states: List[Tensor] = [x]
        for i, (one, two, norm) in enumerate(zip(self.one, self.two, self.norms)):
            index = edges[1].unsqueeze(1).expand(-1, x.size(1))
            around = torch.zeros_like(x).scatter_add(0, index, x.index_select(0, edges[0]))
            x = F.relu(norm(two(F.relu(one((1 + self.eps[i]) * x + around)))))
            states.append(x)
        out: Tensor = self.head(F.dropout(torch.cat(states, 1), 0.5, self.training))
        return out


class SpectralSeries(nn.Module):
    """A one-dimensional Fourier operator, its last state pooled and classified."""

    def __init__(self, channels: int, width: int, modes: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.modes = modes
        self.lift, self.head = nn.Conv1d(channels, width, 1), nn.Linear(width, classes)
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(width, width, modes, 2)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for local, weight in zip(self.local, self.weights):
            spectrum = torch.fft.rfft(x.float())[:, :, : self.modes]
            mixed = torch.einsum("bim,iom->bom", spectrum, torch.view_as_complex(weight.float()))
            x = F.gelu(torch.fft.irfft(mixed, n=x.size(-1)).to(x.dtype) + local(x))
        out: Tensor = self.head(x.mean(-1))
        return out
