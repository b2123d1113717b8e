"""Transformers written by hand, each its author's way."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor) -> Tensor:
    T, D = x.shape[-2:]
    t = torch.arange(T, device=x.device)[:, None] / 10000 ** (torch.arange(0, D, 2, device=x.device) / D)
    cos, sin = t.cos().to(x.dtype), t.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class GQABlock(nn.Module):
    def __init__(self, d: int, heads: int, groups: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.fused = heads, groups, fused
        hd = d // heads
        self.wq, self.wkv, self.wo = (
            nn.Linear(d, d, False),
            nn.Linear(d, 2 * groups * hd, False),
            nn.Linear(d, d, False),
        )
        self.w1, self.w2, self.w3 = (
            nn.Linear(d, 3 * d, False),
            nn.Linear(3 * d, d, False),
            nn.Linear(d, 3 * d, False),
        )
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        h = self.n1(x)
        q = rotate(self.wq(h).view(B, T, self.heads, -1).transpose(1, 2))
        k, v = self.wkv(h).view(B, T, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        k = rotate(k).repeat_interleave(self.heads // self.groups, 1)
        v = v.repeat_interleave(self.heads // self.groups, 1)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        else:
            s = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
            s = s + torch.full((T, T), -1e4, device=x.device, dtype=s.dtype).triu(1)
            y = F.softmax(s.float(), dim=-1).type_as(v) @ v
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, D))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class TinyLlama(nn.Module):
    """Returns the loss; the head is tied."""

    def __init__(
        self,
        vocab: int = 16000,
        d: int = 384,
        n: int = 6,
        heads: int = 6,
        groups: int = 2,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(GQABlock(d, heads, groups, fused) for _ in range(n))
        self.norm, self.lm_head = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        self.lm_head.weight = self.emb.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1)), logits


class MHA(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, q: Tensor, kv: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, d = q.shape
        q = self.q(q).view(b, t, self.h, -1).transpose(1, 2)
        k = self.k(kv).view(b, kv.size(1), self.h, -1).transpose(1, 2)
        v = self.v(kv).view(b, kv.size(1), self.h, -1).transpose(1, 2)
        w = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d // self.h)
        if mask is not None:
            w = w.masked_fill(mask == 0, float("-inf"))
        return self.o(torch.matmul(self.drop(torch.softmax(w, -1)), v).transpose(1, 2).reshape(b, t, d))


class EncoderLayer(nn.Module):
    def __init__(self, d: int, h: int, ff: int) -> None:
        super().__init__()
        self.attn, self.ff1, self.ff2 = MHA(d, h), nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attn(x, x)))
        return self.norm2(x + self.dropout(self.ff2(F.relu(self.ff1(x)))))


class DecoderLayer(nn.Module):
    def __init__(self, d: int, h: int, ff: int) -> None:
        super().__init__()
        self.self_attn, self.cross, self.ff1, self.ff2 = (
            MHA(d, h),
            MHA(d, h),
            nn.Linear(d, ff),
            nn.Linear(ff, d),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.self_attn(h, h, mask)
        x = x + self.cross(self.norms[1](x), memory)
        return x + self.ff2(F.gelu(self.ff1(self.norms[2](x))))


class Seq2SeqTransformer(nn.Module):
    def __init__(self, vocab: int = 12000, d: int = 256, h: int = 8, n: int = 3, ff: int = 1024) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(1, 1024, d) * 0.01)
        self.encoder = nn.ModuleList(EncoderLayer(d, h, ff) for _ in range(n))
        self.decoder = nn.ModuleList(DecoderLayer(d, h, ff) for _ in range(n))
        self.out = nn.Linear(d, vocab)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        m = self.src(src) + self.pos[:, : src.size(1)]
        for e in self.encoder:
            m = e(m)
        mask = torch.ones(tgt.size(1), tgt.size(1), device=tgt.device).tril()
        y = self.tgt(tgt) + self.pos[:, : tgt.size(1)]
        for layer in self.decoder:
            y = layer(y, m, mask)
        return self.out(y)


class PrePostFormer(nn.Module):
    """Norms before and after each part, a learned gate on each residual."""

    def __init__(self, d: int = 256, n: int = 5, feats: int = 40, classes: int = 30) -> None:
        super().__init__()
        self.inp = nn.Linear(feats, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.ffn = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d)) for _ in range(n)
        )
        self.alpha = nn.Parameter(torch.zeros(2, n))
        self.g, self.b = nn.Parameter(torch.ones(n, 4, d)), nn.Parameter(torch.zeros(n, 4, d))
        self.cls = nn.Linear(d, classes)

    def ln(self, x: Tensor, i: int, j: int) -> Tensor:
        mu, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mu) / (var + 1e-5).sqrt() * self.g[i, j] + self.b[i, j]

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for i in range(len(self.qkv)):
            q, k, v = self.qkv[i](self.ln(x, i, 0)).chunk(3, -1)
            p = torch.softmax(q @ k.mT / 16, -1)
            x = x + torch.tanh(self.alpha[0, i]) * self.ln(p @ v, i, 1)
            x = x + torch.tanh(self.alpha[1, i]) * self.ln(self.ffn[i](self.ln(x, i, 2)), i, 3)
        return self.cls(x)


class AlibiLM(nn.Module):
    def __init__(self, vocab: int = 256, d: int = 320, n: int = 5, h: int = 5) -> None:
        super().__init__()
        self.h = h
        self.wte = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "ff": nn.Linear(d, 4 * d),
                    "o": nn.Linear(5 * d, d),
                }
            )
            for _ in range(n)
        )
        self.register_buffer("slopes", torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)]))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        B, T, D = x.shape
        i = torch.arange(T, device=x.device)
        bias = -(i[:, None] - i[None]).to(x.dtype) * self.slopes.view(-1, 1, 1)
        bias = bias.masked_fill(i[None] > i[:, None], float("-inf"))
        for m in self.layers:
            y = m["n"](x)
            q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in m["qkv"](y).split(D, -1))
            a = F.softmax(q @ k.transpose(-1, -2) * (D // self.h) ** -0.5 + bias, -1).to(v.dtype) @ v
            x = x + m["o"](torch.cat([a.transpose(1, 2).reshape(B, T, D), F.gelu(m["ff"](y))], -1))
        return self.head(x)


class UniversalTransformer(nn.Module):
    """One block used again and again, with halting weights."""

    def __init__(self, d: int = 256, steps: int = 8, vocab: int = 4000) -> None:
        super().__init__()
        self.emb, self.steps = nn.Embedding(vocab, d), steps
        self.block = nn.TransformerEncoderLayer(d, 4, 512, batch_first=True)
        self.halt = nn.Linear(d, 1)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        left = torch.ones_like(x[..., :1])
        total = torch.zeros_like(x)
        for _ in range(self.steps):
            x = self.block(x)
            p = torch.sigmoid(self.halt(x))
            total = total + left * p * x
            left = left * (1 - p)
        return self.out(total + left * x)


class PerceiverLike(nn.Module):
    def __init__(
        self, latents: int = 64, d: int = 192, n: int = 4, feats: int = 27, classes: int = 50
    ) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, d) * 0.02)
        self.enter = nn.Linear(feats, d)
        self.cross, self.inner = (nn.ModuleList(MHA(d, 4) for _ in range(n)) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
            for _ in range(n)
        )
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        z = self.latents.expand(x.size(0), -1, -1)
        for c, s, m in zip(self.cross, self.inner, self.mlp):
            z = z + c(z, x)
            z = z + s(z, z)
            z = z + m(z)
        return self.head(z.mean(1))


class SetTransformer(nn.Module):
    def __init__(self, d: int = 128, induce: int = 32, classes: int = 40) -> None:
        super().__init__()
        self.proj = nn.Linear(3, d)
        self.i1, self.i2 = nn.Parameter(torch.randn(1, induce, d)), nn.Parameter(torch.randn(1, induce, d))
        self.seed = nn.Parameter(torch.randn(1, 4, d))
        self.mabs = nn.ModuleList(MHA(d, 4) for _ in range(6))
        self.dec = nn.Linear(4 * d, classes)

    def mab(self, i: int, q: Tensor, k: Tensor) -> Tensor:
        h = q + self.mabs[i](q, k)
        return h + F.relu(h)

    def forward(self, points: Tensor) -> Tensor:
        x, b = self.proj(points), points.size(0)
        x = self.mab(1, x, self.mab(0, self.i1.expand(b, -1, -1), x))
        x = self.mab(3, x, self.mab(2, self.i2.expand(b, -1, -1), x))
        z = self.mab(4, self.seed.expand(b, -1, -1), x)
        return self.dec(self.mab(5, z, z).flatten(1))


class SlotAttention(nn.Module):
    def __init__(self, slots: int = 7, d: int = 64, iters: int = 3) -> None:
        super().__init__()
        self.k, self.iters = slots, iters
        self.enc = nn.Sequential(
            nn.Conv2d(3, d, 5, 1, 2), nn.ReLU(), nn.Conv2d(d, d, 5, 2, 2), nn.ReLU(), nn.Conv2d(d, d, 5, 1, 2)
        )
        self.mu, self.sigma = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.ones(1, 1, d))
        self.q, self.kk, self.v, self.gru = (
            nn.Linear(d, d),
            nn.Linear(d, d),
            nn.Linear(d, d),
            nn.GRUCell(d, d),
        )
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(d, d, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(d, d, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(d, 4, 3, 1, 1),
        )

    def forward(self, img: Tensor) -> Tensor:
        f = self.enc(img)
        B, D, H, W = f.shape
        x = F.layer_norm(f.flatten(2).transpose(1, 2), (D,))
        k, v = self.kk(x), self.v(x)
        s = self.mu + self.sigma * torch.randn(B, self.k, D, device=f.device, dtype=k.dtype)
        for _ in range(self.iters):
            a = torch.softmax(torch.einsum("bsd,bnd->bsn", self.q(s), k) * D**-0.5, 1) + 1e-6
            u = (a / a.sum(-1, keepdim=True)).to(v.dtype) @ v
            s = self.gru(u.reshape(-1, D).to(s.dtype), s.reshape(-1, D)).view(B, self.k, D)
        grid = s.reshape(B * self.k, D, 1, 1).expand(-1, -1, H, W)
        out = self.dec(grid).view(B, self.k, 4, 2 * H, 2 * W)
        return (out[:, :, :3] * out[:, :, 3:].softmax(1)).sum(1)
