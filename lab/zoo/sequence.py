"""Recurrent, attention and convolutional networks over sequences, written by hand."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RecurrentLm(nn.Module):
    """Word-level language model: embedding, LSTM or GRU layers, a classifier over the vocabulary."""

    def __init__(self, cell: str, vocabulary: int, width: int, layers: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.drop = nn.Dropout(dropout)
        self.rnn = getattr(nn, cell)(
            width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.drop(self.embed(tokens)))
        out: Tensor = self.head(self.drop(states))
        return out


class RecurrentClassifier(nn.Module):
    """Bidirectional LSTM or GRU over tokens; the last state is classified."""

    def __init__(self, cell: str, vocabulary: int, width: int, layers: int, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = getattr(nn, cell)(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(tokens))
        out: Tensor = self.head(states[:, -1])
        return out


class SeriesRecurrent(nn.Module):
    """LSTM or GRU over a series of feature vectors (sensors, prices)."""

    def __init__(self, cell: str, features: int, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.rnn = getattr(nn, cell)(features, width, layers, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        out: Tensor = self.head(states[:, -1])
        return out


class Translator(nn.Module):
    """LSTM encoder and decoder with dot-product attention."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.mix = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.source(source))
        states, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(states @ memory.transpose(1, 2), -1)
        out: Tensor = self.head(torch.tanh(self.mix(torch.cat([states, weights @ memory], -1))))
        return out


class TorchTransformer(nn.Module):
    """PyTorch's own nn.Transformer for translation."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Transformer(width, heads, layers, layers, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        mask = mask.to(self.head.weight.dtype)
        out: Tensor = self.head(self.body(self.embed(source), self.embed(target), tgt_mask=mask))
        return out


class TorchEncoder(nn.Module):
    """PyTorch's own nn.TransformerEncoder with a classifier."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True), layers
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embed(tokens)).mean(1))
        return out


class _GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.attn(self.ln_1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, c))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class SmallGpt(nn.Module):
    """A decoder-only language model of a few hundred lines' tutorials, tied head."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int = 2048) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[_GptBlock(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        out: Tensor = self.head(self.ln_f(self.blocks(x)))
        return out


class TextCnn(nn.Module):
    """Convolutions of several widths over word vectors, max-pooled over time."""

    def __init__(self, vocabulary: int, width: int, filters: int, classes: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, k) for k in (3, 4, 5))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(3 * filters, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        pooled = [torch.relu(conv(x)).amax(-1) for conv in self.convs]
        out: Tensor = self.head(self.drop(torch.cat(pooled, 1)))
        return out


class Tcn(nn.Module):
    """Dilated one-dimensional convolutions with residual connections."""

    def __init__(self, channels: int, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 1)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2 ** (i % 8), dilation=2 ** (i % 8)) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for conv, norm in zip(self.convs, self.norms):
            x = x + torch.relu(norm(conv(x)))
        out: Tensor = self.head(x.mean(-1))
        return out


class _ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ff1, self.ff2 = self._feed(width), self._feed(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.conv_norm = nn.LayerNorm(width)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, 31, padding=15, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )
        self.last = nn.LayerNorm(width)

    @staticmethod
    def _feed(width: int) -> nn.Module:
        parts: List[nn.Module] = [
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.SiLU(),
            nn.Dropout(0.1),
        ]
        return nn.Sequential(*parts, nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.conv(self.conv_norm(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.last(x + 0.5 * self.ff2(x))
        return out


class Conformer(nn.Module):
    """Speech encoder: attention and depthwise convolutions in each block."""

    def __init__(self, features: int, width: int, heads: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[_ConformerBlock(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.first(x)).mean(1))
        return out


class ConvLstm(nn.Module):
    """Convolutional LSTM that predicts the next frame."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(channels + width, 4 * width, 3, padding=1)
        self.head = nn.Conv2d(width, channels, 1)

    def forward(self, frames: Tensor) -> Tensor:
        b, _, _, height, width = frames.shape
        state: Tuple[Any, Any] = (frames.new_zeros(b, self.width, height, width),) * 2
        for frame in frames.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, state[0]], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            state = (torch.sigmoid(o) * torch.tanh(cell), cell)
        out: Tensor = self.head(state[0])
        return out
