"""Attention written out: einsum, matmul and softmax, masks, relative positions, pairs."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class PairBlock(nn.Module):
    def __init__(self, d: int, dz: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(d, dz), nn.Linear(d, dz)
        self.norm = nn.LayerNorm(dz)
        self.up, self.down = nn.Linear(dz, 2 * dz), nn.Linear(2 * dz, dz)
        self.bias = nn.Linear(dz, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        z = z + self.a(x)[:, :, None] + self.b(x)[:, None]
        z = z + self.down(F.relu(self.up(self.norm(z))))
        B, L, D = x.shape
        q, k, v = (f(x).view(B, L, 4, D // 4) for f in (self.q, self.k, self.v))
        s = torch.einsum("bihd,bjhd->bijh", q, k) / math.sqrt(D // 4) + self.bias(z)
        y = torch.einsum("bijh,bjhd->bihd", s.softmax(2), v).reshape(B, L, D)
        return x + self.o(y), z


class PairFormer(nn.Module):
    def __init__(self, d: int = 128, dz: int = 32, n: int = 4, vocab: int = 24) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.z0 = nn.Parameter(torch.zeros(dz))
        self.blocks = nn.ModuleList(PairBlock(d, dz) for _ in range(n))
        self.dist = nn.Linear(dz, 37)

    def forward(self, seq: Tensor) -> Tensor:
        x = self.emb(seq)
        z = self.z0.expand(x.size(0), x.size(1), x.size(1), -1)
        for b in self.blocks:
            x, z = b(x, z)
        return self.dist(z + z.transpose(1, 2))


class TriangleUpdate(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(c), nn.LayerNorm(c)
        self.left, self.right, self.lg, self.rg = (nn.Linear(c, c) for _ in range(4))
        self.gate, self.out = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, z: Tensor) -> Tensor:
        h = self.norm(z)
        left = torch.sigmoid(self.lg(h)) * self.left(h)
        right = torch.sigmoid(self.rg(h)) * self.right(h)
        t = torch.einsum("bikc,bjkc->bijc", left, right)
        return z + torch.sigmoid(self.gate(h)) * self.out(self.norm_out(t))


class TriangleNet(nn.Module):
    def __init__(self, c: int = 48, n: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(4, c)
        self.layers = nn.ModuleList(TriangleUpdate(c) for _ in range(n))
        self.leave = nn.Linear(c, 20)

    def forward(self, pairs: Tensor) -> Tensor:
        z = self.enter(pairs)
        for layer in self.layers:
            z = layer(z)
        return self.leave(z)


class RelPosAttention(nn.Module):
    def __init__(self, d: int, heads: int, span: int) -> None:
        super().__init__()
        self.heads, self.span = heads, span
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.rel = nn.Parameter(torch.randn(2 * span + 1, d // heads) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.reshape(B, T, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        pos = torch.arange(T, device=x.device)
        idx = (pos[None] - pos[:, None]).clamp(-self.span, self.span) + self.span
        s = (q @ k.transpose(-1, -2) + torch.einsum("bhid,ijd->bhij", q, self.rel[idx])) / math.sqrt(
            q.size(-1)
        )
        s = s.masked_fill(idx > self.span, float("-inf"))
        y = F.dropout(F.softmax(s, -1), 0.1, self.training) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, D))


class RelPosLM(nn.Module):
    def __init__(self, vocab: int = 8000, d: int = 256, n: int = 4, heads: int = 8, span: int = 64) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.att = nn.ModuleList(RelPosAttention(d, heads, span) for _ in range(n))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.n1, self.n2 = (nn.ModuleList(nn.LayerNorm(d) for _ in range(n)) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for a, f, n1, n2 in zip(self.att, self.ff, self.n1, self.n2):
            x = n1(x + a(x))
            x = n2(x + f(x))
        return x @ self.tok.weight.t()


class LinearAttentionLayer(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.to_qkv, self.to_out = nn.Linear(d, d * 3), nn.Linear(d, d)
        self.norm, self.mlp = nn.LayerNorm(d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.to_qkv(self.norm(x)).view(B, T, 3, self.h, D // self.h).unbind(2)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bthd,bthe->bhde", k, v)
        z = 1 / (torch.einsum("bthd,bhd->bth", q, k.sum(1)) + 1e-4)
        y = torch.einsum("bthd,bhde,bth->bthe", q, kv, z).reshape(B, T, D)
        return x + F.gelu(self.mlp(self.to_out(y)))


class LinearFormer(nn.Module):
    def __init__(self, feats: int = 32, d: int = 192, n: int = 6, h: int = 6, classes: int = 12) -> None:
        super().__init__()
        self.inp = nn.Linear(feats, d)
        self.layers = nn.ModuleList(LinearAttentionLayer(d, h) for _ in range(n))
        self.cls = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.cls(x.mean(1))


class CausalLinearAttention(nn.Module):
    """Keys and values summed over time: a state of d x d at every position."""

    def __init__(self, d: int = 64, classes: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(classes, d)
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(d, d) for _ in range(layers)) for _ in range(3))
        self.head = nn.Linear(d, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for q, k, v in zip(self.q, self.k, self.v):
            key = F.softplus(k(x))
            state = torch.cumsum(key.unsqueeze(-1) * v(x).unsqueeze(-2), 1)
            query = F.softplus(q(x))
            y = torch.einsum("btd,btde->bte", query, state.to(query.dtype))
            x = x + y / (query * key.cumsum(1)).sum(-1, keepdim=True)
        return self.head(x)


class LocalWindowAttention(nn.Module):
    def __init__(self, d: int = 128, window: int = 32, n: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.w = window
        self.enter = nn.Conv1d(8, d, 5, padding=2)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).transpose(1, 2)
        B, T, D = x.shape
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = qkv(F.layer_norm(x, (D,))).view(B, T // self.w, self.w, 3 * D).chunk(3, -1)
            k = torch.cat([F.pad(k, (0, 0, 0, 0, 1, 0))[:, :-1], k], 2)
            v = torch.cat([F.pad(v, (0, 0, 0, 0, 1, 0))[:, :-1], v], 2)
            a = torch.softmax(q @ k.transpose(-1, -2) * D**-0.5, -1)
            x = x + out((a @ v).reshape(B, T, D))
        return self.head(x.amax(1))


class AxialAttention2d(nn.Module):
    def __init__(self, c: int = 64, n: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 4, 4)
        self.rows = nn.ModuleList(nn.Conv2d(c, 3 * c, 1) for _ in range(n))
        self.cols = nn.ModuleList(nn.Conv2d(c, 3 * c, 1) for _ in range(n))
        self.bn = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(n))
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for r, c, bn in zip(self.rows, self.cols, self.bn):
            q, k, v = r(x).chunk(3, 1)
            a = torch.einsum("bchw,bchv->bhwv", q, k).softmax(-1)
            x = x + torch.einsum("bhwv,bchv->bchw", a, v)
            q, k, v = c(x).chunk(3, 1)
            a = torch.einsum("bchw,bcgw->bwhg", q, k).softmax(-1)
            x = F.relu(bn(x + torch.einsum("bwhg,bcgw->bchw", a, v)))
        return self.fc(x.mean((2, 3)))


class NonLocalNet(nn.Module):
    def __init__(self, c: int = 64, classes: int = 100) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, c, 3, 2, 1), nn.Conv2d(c, c, 3, 2, 1)
        self.theta, self.phi, self.g = (nn.Conv2d(c, c // 2, 1) for _ in range(3))
        self.w = nn.Conv2d(c // 2, c, 1)
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.c2(F.relu(self.c1(x))))
        t, p, g = (f(x).flatten(2) for f in (self.theta, self.phi, self.g))
        f = F.softmax(torch.bmm(t.transpose(1, 2), p), dim=-1)
        y = torch.bmm(f, g.transpose(1, 2)).transpose(1, 2).reshape(x.size(0), -1, *x.shape[2:])
        return self.fc((x + self.w(y)).mean((2, 3)))


class TalkingHeads(nn.Module):
    def __init__(self, d: int = 192, h: int = 6, n: int = 4, vocab: int = 5000) -> None:
        super().__init__()
        self.h = h
        self.embed = nn.Embedding(vocab, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.pre, self.post = (
            nn.ParameterList(nn.Parameter(torch.eye(h)) for _ in range(n)) for _ in range(2)
        )
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.head = nn.Linear(d, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for i, qkv in enumerate(self.qkv):
            q, k, v = qkv(self.ln[i](x)).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
            s = torch.einsum("bhid,bhjd->bhij", q, k)
            s = torch.einsum("bhij,hg->bgij", s, self.pre[i]).softmax(-1)
            s = torch.einsum("bhij,hg->bgij", s, self.post[i])
            x = x + torch.einsum("bhij,bhjd->bihd", s, v).flatten(2)
        return self.head(x[:, 0])
