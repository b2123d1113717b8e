"""Networks over text and series, written from papers: attention, recurrence and masks by hand."""

from __future__ import annotations

import math
from typing import List

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class AttentiveBiLstm(nn.Module):
    """A bidirectional LSTM whose states are summed with learned attention weights."""

    def __init__(self, vocabulary: int, width: int, hidden: int, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.key, self.query = nn.Linear(2 * hidden, hidden), nn.Parameter(torch.zeros(hidden))
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(F.dropout(self.embed(tokens), 0.3, self.training))
        weights = torch.softmax(torch.tanh(self.key(states)) @ self.query, 1)
        out: Tensor = self.head(torch.einsum("bn,bnd->bd", weights, states))
        return out


class BahdanauTranslator(nn.Module):
    """A GRU encoder and a GRU cell that attends with an additive score at every step."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.start = nn.Linear(width, width)
        self.key, self.query = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.cell, self.head = nn.GRUCell(3 * width, width), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(source))
        state, keys = torch.tanh(self.start(last[-1])), self.key(memory)
        words, outs = self.target(target), []
        for t in range(target.size(1)):
            scores = self.score(torch.tanh(keys + self.query(state).unsqueeze(1)))
            context = (F.softmax(scores, 1) * memory).sum(1)
            state = self.cell(torch.cat([words[:, t], context], -1), state)
            outs.append(self.head(state))
        return torch.stack(outs, 1)


class _Heads(nn.Module):
    """Attention with separate projections, scores and softmax in plain sight."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.o, self.drop = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, c // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(c // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask[:n, :n] == 0, float("-inf"))
        mixed = torch.matmul(self.drop(F.softmax(scores, dim=-1)), v)
        out: Tensor = self.o(mixed.transpose(1, 2).contiguous().view(b, n, c))
        return out


class ScratchEncoder(nn.Module):
    """The 2017 encoder with learned positions and norms after each sum."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, layers: int, inner: int, classes: int = 2
    ) -> None:
        super().__init__()
        self.embed, self.where = nn.Embedding(vocabulary, width), nn.Embedding(2048, width)
        self.attend = nn.ModuleList(_Heads(width, heads) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, inner) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(inner, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * math.sqrt(self.embed.embedding_dim)
        x = x + self.where(torch.arange(tokens.size(1), device=tokens.device)).unsqueeze(0)
        for i, attend in enumerate(self.attend):
            x = self.norms[2 * i](x + attend(x))
            h = self.down[i](F.dropout(F.relu(self.up[i](x)), 0.1, self.training))
            x = self.norms[2 * i + 1](x + h)
        out: Tensor = self.head(x.max(dim=1).values)
        return out


class ScratchGpt(nn.Module):
    """A tutorial's GPT: a triangular mask as a buffer, attention by matrix products, an untied head."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int = 512) -> None:
        super().__init__()
        self.embed, self.where = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(1, length, width))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))
        self.attend = nn.ModuleList(_Heads(width, heads) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.where[:, : tokens.size(1)]
        for i, attend in enumerate(self.attend):
            x = x + attend(self.norms[2 * i](x), self.get_buffer("mask"))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x)), approximate="tanh"))
        out: Tensor = self.head(self.norms[-1](x))
        return out


class RetentionLm(nn.Module):
    """A RetNet-like language model: decayed products without a softmax, gated by SiLU."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.qkvg = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2 * layers))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    @staticmethod
    def _norm(x: Tensor, scale: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        n = torch.arange(tokens.size(1), device=tokens.device)
        gap = (n[:, None] - n[None, :]).to(x.dtype)
        rates = 1 - 2.0 ** (-5 - torch.arange(self.heads, device=x.device, dtype=x.dtype))
        decay = torch.where(gap >= 0, rates[:, None, None] ** gap.clamp(min=0), torch.zeros_like(gap))
        for i, project in enumerate(self.qkvg):
            q, k, v, gate = project(self._norm(x, self.scales[2 * i])).chunk(4, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
            kept = torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5 * decay
            mixed = torch.einsum("bhnm,bmhd->bnhd", kept, v)
            mixed = F.layer_norm(mixed, mixed.shape[-1:]).flatten(2)
            x = x + self.out[i](F.silu(gate) * mixed)
            x = x + self.down[i](F.gelu(self.up[i](self._norm(x, self.scales[2 * i + 1]))))
        out: Tensor = self.head(x)
        return out


class LstmByHand(nn.Module):
    """A language model whose LSTM is a loop of gates over time."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.of_input, self.of_state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.of_input(self.embed(tokens))
        h = gates.new_zeros(tokens.size(0), self.width)
        c, states = torch.zeros_like(h), []
        for t in range(tokens.size(1)):
            i, f, g, o = (gates[:, t] + self.of_state(h)).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        out: Tensor = self.head(torch.stack(states, dim=1))
        return out


class WeightNormTcn(nn.Module):
    """A temporal convolutional network: causal padding, weight norm, dropout, residual sums."""

    def __init__(self, channels: int, widths: List[int], kernel: int = 7, classes: int = 10) -> None:
        super().__init__()
        self.kernel = kernel
        steps = list(zip([channels, *widths], widths))
        self.one = nn.ModuleList(
            weight_norm(nn.Conv1d(a, b, kernel, dilation=2**i)) for i, (a, b) in enumerate(steps)
        )
        self.two = nn.ModuleList(
            weight_norm(nn.Conv1d(b, b, kernel, dilation=2**i)) for i, (_, b) in enumerate(steps)
        )
        self.short = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b in steps)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, (one, two, short) in enumerate(zip(self.one, self.two, self.short)):
            pad = ((self.kernel - 1) * 2**i, 0)
            h = F.dropout(F.relu(one(F.pad(x, pad))), 0.2, self.training)
            h = F.dropout(F.relu(two(F.pad(h, pad))), 0.2, self.training)
            x = F.relu(h + short(x))
        out: Tensor = self.head(x[:, :, -1])
        return out


class WaveNetByHand(nn.Module):
    """WaveNet: gated dilated causal convolutions, residuals, and a sum of skips, over 8-bit samples."""

    def __init__(self, width: int, skip: int, layers: int, cycles: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.dilations = [2**i for i in range(layers)] * cycles
        self.embed = nn.Embedding(vocabulary, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations)
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.dilations)
        self.skips = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in self.dilations)
        self.last, self.head = nn.Conv1d(skip, skip, 1), nn.Conv1d(skip, vocabulary, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x, total = self.embed(tokens).transpose(1, 2), torch.zeros(())
        for i, d in enumerate(self.dilations):
            a, b = self.gated[i](F.pad(x, (d, 0))).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            total = self.skips[i](h) if i == 0 else total + self.skips[i](h)
            x = x + self.residual[i](h)
        out: Tensor = self.head(F.relu(self.last(F.relu(total)))).transpose(1, 2)
        return out


class EcgResNet(nn.Module):
    """A one-dimensional ResNet of ECG leads with long kernels and pooling on the shortcut."""

    def __init__(self, channels: int, width: int, blocks: int, kernel: int = 17, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv1d(channels, width, kernel, padding=kernel // 2)
        widths = [width * (1 + i // 4) for i in range(blocks + 1)]
        pairs = list(zip(widths, widths[1:]))
        self.one = nn.ModuleList(
            nn.Conv1d(a, b, kernel, 1 + i % 2, kernel // 2) for i, (a, b) in enumerate(pairs)
        )
        self.two = nn.ModuleList(nn.Conv1d(b, b, kernel, padding=kernel // 2) for _, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(w) for a, b in pairs for w in (a, b))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, (one, two) in enumerate(zip(self.one, self.two)):
            h = one(F.relu(self.norms[2 * i](x)))
            h = two(F.dropout(F.relu(self.norms[2 * i + 1](h)), 0.2, self.training))
            short = F.max_pool1d(x, 2, ceil_mode=True) if i % 2 else x
            x = h + F.pad(short, (0, 0, 0, h.size(1) - short.size(1)))
        out: Tensor = self.head(F.relu(x).mean(-1))
        return out


class HighwayCharCnn(nn.Module):
    """Character convolutions of many widths, max over time, two highway layers."""

    def __init__(self, vocabulary: int, width: int, filters: int, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters * k, k, padding=k // 2) for k in range(1, 8))
        total = filters * 28
        self.gates = nn.ModuleList(nn.Linear(total, total) for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(total, total) for _ in range(2))
        self.head = nn.Linear(total, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).permute(0, 2, 1)
        x = torch.cat([F.max_pool1d(torch.tanh(c(x)), tokens.size(1)).squeeze(-1) for c in self.convs], 1)
        for gate, other in zip(self.gates, self.others):
            t = torch.sigmoid(gate(x) - 2)
            x = t * F.relu(other(x)) + (1 - t) * x
        out: Tensor = self.head(x)
        return out
