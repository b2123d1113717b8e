"""Sequence models: linear and long-convolution attention, recurrences in closed form, experts, memories."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class SpatialGate(nn.Module):
    def __init__(self, d: int, L: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.w = nn.Parameter(torch.zeros(L, L))
        self.b = nn.Parameter(torch.ones(L))

    def forward(self, x: Tensor) -> Tensor:
        u, v = x.chunk(2, -1)
        w = torch.tril(self.w)
        v = torch.einsum("ij,bjd->bid", w, self.norm(v)) + self.b[:, None]
        return u * v


class GatedMlpLM(nn.Module):
    def __init__(self, vocab: int = 12000, d: int = 384, L: int = 256, n: int = 8) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.up = nn.ModuleList(nn.Linear(d, 4 * d) for _ in range(n))
        self.gate = nn.ModuleList(SpatialGate(2 * d, L) for _ in range(n))
        self.down = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(n))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.emb(idx)
        for norm, up, gate, down in zip(self.norms, self.up, self.gate, self.down):
            x = x + down(gate(F.gelu(up(norm(x)))))
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1)), logits


class ChunkGLA(nn.Module):
    """Gated linear attention over chunks."""

    def __init__(self, d: int, h: int, chunk: int) -> None:
        super().__init__()
        self.h, self.c = h, chunk
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.g = nn.Linear(d, d)
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        e = D // self.h
        q, k, v = (t.view(B, L // self.c, self.c, self.h, e) for t in self.qkv(x).chunk(3, -1))
        a = F.logsigmoid(self.g(x).view(B, L // self.c, self.c, self.h, e).float()) / 16
        cum = a.cumsum(2)
        qg, kg = q * cum.exp(), k * (-cum).exp()
        mask = torch.ones(self.c, self.c, device=x.device, dtype=torch.bool).tril()
        att = torch.einsum("bnihe,bnjhe->bnhij", qg, kg).masked_fill(~mask, 0)
        intra = torch.einsum("bnhij,bnjhe->bnihe", att, v.float())
        state = torch.zeros(B, self.h, e, e, device=x.device, dtype=torch.float32)
        outs = []
        for n in range(L // self.c):
            outs.append(torch.einsum("bihe,bhef->bihf", qg[:, n], state))
            last = cum[:, n, -1]
            state = state * last.exp()[..., None] + torch.einsum(
                "bihe,bihf->bhef", k[:, n] * (last[:, None] - cum[:, n]).exp(), v[:, n].float()
            )
        y = intra + torch.stack(outs, 1)
        return self.o(y.reshape(B, L, D).to(x.dtype))


class GlaLM(nn.Module):
    def __init__(self, vocab: int = 8192, d: int = 256, n: int = 4, h: int = 4, chunk: int = 32) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.att = nn.ModuleList(ChunkGLA(d, h, chunk) for _ in range(n))
        self.n1 = nn.ModuleList(nn.RMSNorm(d) for _ in range(n))
        self.n2 = nn.ModuleList(nn.RMSNorm(d) for _ in range(n))
        self.wi = nn.ModuleList(nn.Linear(d, 6 * d, bias=False) for _ in range(n))
        self.wo = nn.ModuleList(nn.Linear(3 * d, d, bias=False) for _ in range(n))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tok(idx)
        for a, n1, n2, wi, wo in zip(self.att, self.n1, self.n2, self.wi, self.wo):
            x = x + a(n1(x))
            u, g = wi(n2(x)).chunk(2, -1)
            x = x + wo(u * F.silu(g))
        logits = x @ self.tok.weight.t()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), idx[:, 1:].flatten())


class MatrixLSTM(nn.Module):
    """xLSTM's matrix memory in parallel form."""

    def __init__(self, d: int = 256, h: int = 4, n: int = 4, features: int = 24, classes: int = 30) -> None:
        super().__init__()
        self.h = h
        self.inp = nn.Linear(features, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.gates = nn.ModuleList(nn.Linear(d, 2 * h) for _ in range(n))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        B, L, D = x.shape
        tri = torch.ones(L, L, dtype=torch.bool, device=x.device).tril()
        for qkv, gates, out, norm in zip(self.qkv, self.gates, self.out, self.norm):
            q, k, v = (t.view(B, L, self.h, -1).transpose(1, 2) for t in qkv(norm(x)).chunk(3, -1))
            i, f = gates(x).transpose(1, 2).float().chunk(2, 1)
            F_ = F.logsigmoid(f).cumsum(-1)
            logd = (F_[..., :, None] - F_[..., None, :] + i[..., None, :]).masked_fill(~tri, -torch.inf)
            m = logd.amax(-1, keepdim=True)
            s = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1)) * (logd - m).exp()
            norm_ = torch.maximum(s.sum(-1, keepdim=True).abs(), (-m).exp())
            y = (s / norm_).to(v.dtype) @ v
            x = x + out(y.transpose(1, 2).reshape(B, L, D))
        return self.head(x)


class HyenaFilter(nn.Module):
    def __init__(self, d: int, L: int, order: int = 2) -> None:
        super().__init__()
        self.order, self.d = order, d
        self.mlp = nn.Sequential(
            nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, d * order)
        )
        t = torch.linspace(0, 1, L)[:, None]
        freq = torch.arange(1, 17)[None] * t * 2 * math.pi
        self.register_buffer("pos", torch.cat([t, freq.sin(), freq.cos()], -1))
        self.decay = nn.Parameter(torch.rand(d))

    def forward(self, L: int) -> Tensor:
        p: Tensor = self.pos  # type: ignore[assignment]
        h = self.mlp(p[:L].to(self.decay.dtype)).view(L, self.order, self.d)
        return (h * torch.exp(-p[:L, :1, None] * self.decay.abs() * 8).to(h.dtype)).permute(1, 2, 0)


class HyenaDNA(nn.Module):
    def __init__(self, d: int = 128, L: int = 2048, n: int = 4, vocab: int = 16) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.proj = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.short = nn.ModuleList(nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d) for _ in range(n))
        self.filters = nn.ModuleList(HyenaFilter(d, L) for _ in range(n))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.head = nn.Linear(d, vocab)

    def forward(self, x: Tensor) -> Tensor:
        L = x.size(1)
        h = self.emb(x)
        for proj, short, filt, out in zip(self.proj, self.short, self.filters, self.out):
            u = short(proj(h).transpose(1, 2))[..., :L]
            v, x1, x2 = u.chunk(3, 1)
            for k, gate in zip(filt(L), (x1, x2)):
                y = torch.fft.irfft(
                    torch.fft.rfft(v.float(), n=2 * L) * torch.fft.rfft(k.float(), n=2 * L), n=2 * L
                )[..., :L]
                v = y.to(gate.dtype) * gate
            h = h + out(v.transpose(1, 2))
        return self.head(h)


class PerformerEncoder(nn.Module):
    """Random features instead of softmax."""

    def __init__(
        self, d: int = 256, h: int = 8, m: int = 64, n: int = 6, features: int = 40, classes: int = 5
    ) -> None:
        super().__init__()
        self.h = h
        self.inp = nn.Linear(features, d)
        self.q, self.k, self.v, self.o = (nn.ModuleList(nn.Linear(d, d) for _ in range(n)) for _ in range(4))
        self.register_buffer("omega", torch.randn(m, d // h))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * n))
        self.cls = nn.Linear(d, classes)

    def phi(self, x: Tensor) -> Tensor:
        w: Tensor = self.omega.to(x.dtype)  # type: ignore[assignment, operator]
        y = torch.einsum("bhld,md->bhlm", x / x.size(-1) ** 0.25, w)
        return (
            torch.exp(
                y
                - (x**2).sum(-1, keepdim=True) / (2 * math.sqrt(x.size(-1)))
                - y.amax((-1, -2), keepdim=True)
            )
            + 1e-4
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for i in range(len(self.q)):
            y = self.ln[2 * i](x)
            q, k, v = (f[i](y).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = self.phi(q), self.phi(k)
            kv = torch.einsum("bhlm,bhld->bhmd", k, v)
            z = 1 / (torch.einsum("bhlm,bhm->bhl", q, k.sum(2)) + 1e-6)
            y = torch.einsum("bhlm,bhmd,bhl->bhld", q, kv, z)
            x = x + self.o[i](y.transpose(1, 2).flatten(2))
            x = x + self.ff[i](self.ln[2 * i + 1](x))
        return self.cls(x.mean(1))


class LshAttentionNet(nn.Module):
    """Tokens sorted into buckets by a random rotation; attention inside neighbouring chunks."""

    def __init__(
        self, vocab: int = 5000, d: int = 256, buckets: int = 16, chunk: int = 64, n: int = 3
    ) -> None:
        super().__init__()
        self.buckets, self.chunk = buckets, chunk
        self.emb = nn.Embedding(vocab, d)
        self.qk = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n))
        self.v = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.head = nn.Linear(d, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.emb(idx)
        B, L, D = x.shape
        for qk_, v_, ff, norm in zip(self.qk, self.v, self.ff, self.norm):
            qk, v = qk_(norm(x)), v_(x)
            rot = torch.randn(D, self.buckets // 2, device=x.device, dtype=qk.dtype)
            r = qk.detach() @ rot
            order = torch.cat([r, -r], -1).argmax(-1).argsort(dim=-1, stable=True)
            back = order.argsort(dim=-1)
            s = order[..., None].expand(-1, -1, D)
            q = qk.gather(1, s).view(B, -1, self.chunk, D)
            w = v.gather(1, s).view(B, -1, self.chunk, D)
            k2 = torch.cat([q, q.roll(1, 1)], 2)
            w2 = torch.cat([w, w.roll(1, 1)], 2)
            p = torch.softmax(q @ F.normalize(k2, dim=-1).transpose(-1, -2) / math.sqrt(D), -1)
            y = (p @ w2).view(B, L, D).gather(1, back[..., None].expand(-1, -1, D))
            x = x + y
            x = x + ff(x)
        return self.head(x)


class AftLM(nn.Module):
    """Attention-free transformer: a learned position matrix, no query-key product."""

    def __init__(self, vocab: int = 256, d: int = 192, L: int = 192, n: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.w = nn.ParameterList(nn.Parameter(torch.zeros(L, L)) for _ in range(n))
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.proj = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.head = nn.Linear(d, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.emb(idx)
        L = x.size(1)
        mask = torch.full((L, L), -1e4, device=x.device).triu(1)
        for w, qkv, proj in zip(self.w, self.qkv, self.proj):
            q, k, v = qkv(x).chunk(3, -1)
            e = torch.exp((w[:L, :L] + mask)[None, :, :, None] + k[:, None].clamp(max=10))
            x = x + proj(torch.sigmoid(q) * (e * v[:, None]).sum(2) / e.sum(2).clamp(min=1e-4))
        return self.head(x)


class SwitchText(nn.Module):
    """Top-1 experts with a capacity, dispatched by one-hot einsums; the balance loss inside."""

    def __init__(
        self, vocab: int = 10000, d: int = 256, experts: int = 8, n: int = 3, factor: float = 1.25
    ) -> None:
        super().__init__()
        self.e, self.factor = experts, factor
        self.emb = nn.Embedding(vocab, d)
        self.att = nn.ModuleList(nn.MultiheadAttention(d, 8, batch_first=True) for _ in range(n))
        self.router = nn.ModuleList(nn.Linear(d, experts) for _ in range(n))
        self.w1 = nn.ParameterList(nn.Parameter(torch.randn(experts, d, 4 * d) * 0.02) for _ in range(n))
        self.w2 = nn.ParameterList(nn.Parameter(torch.randn(experts, 4 * d, d) * 0.02) for _ in range(n))
        self.head = nn.Linear(d, vocab)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.emb(idx)
        B, L, D = x.shape
        balance = x.new_zeros(())
        for att, router, w1, w2 in zip(self.att, self.router, self.w1, self.w2):
            x = x + att(x, x, x, need_weights=False)[0]
            flat = x.reshape(B * L, D)
            p = router(flat).float().softmax(-1)
            gate, choice = p.max(-1)
            one = F.one_hot(choice, self.e).float()
            cap = int(self.factor * B * L / self.e) + 1
            pos = (one.cumsum(0) * one - 1).long()
            keep = one * (pos < cap)
            cap = min(cap, 512)
            disp = keep[..., None] * F.one_hot(pos.clamp(0, cap - 1), cap)
            disp = disp.to(flat.dtype)
            inp = torch.einsum("tec,td->ecd", disp, flat)
            h = torch.einsum("ecd,edf->ecf", inp, w1).relu()
            out = torch.einsum("ecf,efd->ecd", h, w2)
            y = torch.einsum("tec,ecd->td", disp * gate[:, None, None].to(disp.dtype), out)
            balance = balance + self.e * (one.mean(0) * p.mean(0)).sum()
            x = x + y.view(B, L, D)
        logits = self.head(x[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten()) + 0.01 * balance


class SoftMoeVision(nn.Module):
    def __init__(self, side: int = 96, patch: int = 8, d: int = 256, experts: int = 16, n: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, d, patch, patch)
        self.pos = nn.Parameter(torch.zeros(1, (side // patch) ** 2, d))
        self.slots = nn.ParameterList(nn.Parameter(torch.randn(d, experts, 4)) for _ in range(n))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(experts)
            )
            for _ in range(n)
        )
        self.att = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.head = nn.Linear(d, 100)

    def forward(self, img: Tensor) -> Tensor:
        x = self.embed(img).flatten(2).transpose(1, 2) + self.pos
        for slots, experts, att, norm in zip(self.slots, self.experts, self.att, self.norm):
            q, k, v = (t.unflatten(-1, (8, -1)).transpose(1, 2) for t in att(norm(x)).chunk(3, -1))
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            logits = torch.einsum("bnd,des->bnes", x, slots)
            dispatch, combine = logits.softmax(1), logits.flatten(2).softmax(-1).view_as(logits)
            inp = torch.einsum("bnd,bnes->ebsd", x, dispatch)
            out = torch.stack([f(i) for f, i in zip(experts, inp)])  # type: ignore[call-overload]
            x = x + torch.einsum("ebsd,bnes->bnd", out, combine)
        return self.head(x.mean(1))


class MsaTrunk(nn.Module):
    """Row and column attention over an alignment, an outer product mean into pairs."""

    def __init__(self, d: int = 64, dz: int = 32, n: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(23, d)
        self.row = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.col = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.bias = nn.ModuleList(nn.Linear(dz, 4) for _ in range(n))
        self.ab = nn.ModuleList(nn.Linear(d, 16) for _ in range(n))
        self.opm = nn.ModuleList(nn.Linear(64, dz) for _ in range(n))
        self.head = nn.Linear(dz, 20)
        self.dz = dz

    @staticmethod
    def att(qkv: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)) for t in qkv.chunk(3, -1))
        s = torch.einsum("bsihd,bsjhd->bshij", q, k) * q.size(-1) ** -0.5
        if bias is not None:
            s = s + bias[:, None]
        return torch.einsum("bshij,bsjhd->bsihd", s.softmax(-1), v).flatten(3)

    def forward(self, msa: Tensor) -> Tensor:
        m = self.emb(msa)
        B, _, L, _ = m.shape
        z = m.new_zeros(B, L, L, self.dz)
        for row, col, bias, ab, opm in zip(self.row, self.col, self.bias, self.ab, self.opm):
            m = m + self.att(row(m), bias(z).permute(0, 3, 1, 2))
            mt = m.transpose(1, 2)
            m = m + self.att(col(mt), None).transpose(1, 2)
            a, b = ab(m).chunk(2, -1)
            z = z + opm(torch.einsum("bsia,bsjc->bijac", a, b).flatten(3) / m.size(1))
        return self.head(z)


class TransducerJoint(nn.Module):
    """RNN-T: every frame against every label, the lattice summed by a loop over diagonals."""

    def __init__(self, mels: int = 80, d: int = 256, vocab: int = 64) -> None:
        super().__init__()
        self.enc = nn.LSTM(mels, d, 2, batch_first=True)
        self.emb = nn.Embedding(vocab, d)
        self.pred = nn.GRU(d, d, batch_first=True)
        self.joint = nn.Linear(d, d)
        self.out = nn.Linear(d, vocab)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        f, _ = self.enc(x)
        g, _ = self.pred(self.emb(F.pad(y, (1, 0))))
        h = torch.tanh(self.joint(f)[:, :, None] + g[:, None])
        lp = self.out(h).float().log_softmax(-1)
        blank = lp[..., 0]
        emit = lp[:, :, :-1].gather(3, y[:, None, :, None].expand(-1, x.size(1), -1, 1)).squeeze(3)
        alpha = [F.pad(emit[:, 0].cumsum(1), (1, 0))]
        for t in range(1, x.size(1)):
            stay = alpha[-1] + blank[:, t - 1]
            cum = F.pad(emit[:, t].cumsum(1), (1, 0))
            alpha.append(torch.logcumsumexp(stay - cum, 1) + cum)
        return -(alpha[-1][:, -1] + blank[:, -1, -1]).mean()


class CopyGenerator(nn.Module):
    """Pointer-generator summarizer: scatter over an extended vocabulary at every step."""

    def __init__(self, vocab: int = 8000, d: int = 192, steps: int = 24) -> None:
        super().__init__()
        self.steps, self.vocab = steps, vocab
        self.emb = nn.Embedding(vocab, d)
        self.enc = nn.LSTM(d, d, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(3 * d, d)
        self.wh, self.ws, self.wc, self.v = (
            nn.Linear(2 * d, d),
            nn.Linear(d, d),
            nn.Linear(1, d),
            nn.Linear(d, 1),
        )
        self.out = nn.Linear(3 * d, vocab)
        self.pgen = nn.Linear(4 * d, 1)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        enc, _ = self.enc(self.emb(src))
        keys = self.wh(enc)
        B = src.size(0)
        h = c = enc.new_zeros(B, self.cell.hidden_size)
        ctx, cov = enc.new_zeros(B, enc.size(2)), enc.new_zeros(B, src.size(1))
        loss = enc.new_zeros(())
        for t in range(self.steps):
            e = self.emb(tgt[:, t])
            h, c = self.cell(torch.cat([e, ctx], 1), (h, c))
            a = (
                self.v(torch.tanh(keys + self.ws(h)[:, None] + self.wc(cov[..., None])))
                .squeeze(-1)
                .softmax(1)
            )
            ctx = torch.bmm(a[:, None], enc).squeeze(1)
            loss = loss + torch.minimum(a, cov).sum(1).mean()
            cov = cov + a
            p = torch.sigmoid(self.pgen(torch.cat([ctx, h, e], 1)))
            dist = p * self.out(torch.cat([ctx, h], 1)).softmax(1)
            dist = dist.scatter_add(1, src, ((1 - p) * a).to(dist.dtype))
            loss = loss - torch.log(dist.gather(1, tgt[:, t : t + 1]) + 1e-6).mean()
        return loss / self.steps


class BiaffineParser(nn.Module):
    def __init__(self, vocab: int = 20000, d: int = 300, rels: int = 45) -> None:
        super().__init__()
        self.word, self.tag = nn.Embedding(vocab, 100), nn.Embedding(50, 50)
        self.rnn = nn.LSTM(150, d, 3, batch_first=True, bidirectional=True, dropout=0.3)
        self.head, self.dep = nn.Linear(2 * d, 400), nn.Linear(2 * d, 400)
        self.rh, self.rd = nn.Linear(2 * d, 100), nn.Linear(2 * d, 100)
        self.arc = nn.Parameter(torch.randn(401, 400) * 0.01)
        self.rel = nn.Parameter(torch.randn(rels, 101, 101) * 0.01)

    def forward(self, words: Tensor, tags: Tensor, heads: Tensor, rels: Tensor) -> Tensor:
        x, _ = self.rnn(torch.cat([self.word(words), self.tag(tags)], -1))
        h, d = F.leaky_relu(self.head(x), 0.1), F.leaky_relu(self.dep(x), 0.1)
        one = torch.ones_like(x[..., :1])
        arcs = torch.einsum("bix,xy,bjy->bij", torch.cat([d, one], -1), self.arc, h)
        rh = torch.cat([F.leaky_relu(self.rh(x), 0.1), one], -1)
        rd = torch.cat([F.leaky_relu(self.rd(x), 0.1), one], -1)
        scores = torch.einsum("bix,rxy,bjy->bijr", rd, self.rel, rh)
        chosen = scores.gather(2, heads[..., None, None].expand(-1, -1, 1, scores.size(-1))).squeeze(2)
        return F.cross_entropy(arcs.flatten(0, 1), heads.flatten()) + F.cross_entropy(
            chosen.flatten(0, 1), rels.flatten()
        )


class DifferentiableComputer(nn.Module):
    """DNC: a memory with content and usage addressing, written step by step."""

    def __init__(self, features: int = 16, d: int = 128, slots: int = 64, width: int = 32) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        self.ctrl = nn.LSTMCell(features + width, d)
        self.face = nn.Linear(d, 3 * width + 5)
        self.out = nn.Linear(d + width, features)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        M = x.new_zeros(B, self.slots, self.width) + 1e-4
        use, ww, read = x.new_zeros(B, self.slots), x.new_zeros(B, self.slots), x.new_zeros(B, self.width)
        h = c = x.new_zeros(B, self.ctrl.hidden_size)
        ys = []
        for t in range(T):
            h, c = self.ctrl(torch.cat([x[:, t], read], 1), (h, c))
            o = self.face(h)
            kr, kw, e = (o[:, i * self.width : (i + 1) * self.width] for i in range(3))
            br, bw, gw, ga, free = o[:, 3 * self.width :].unbind(1)
            use = (use + ww - use * ww) * torch.sigmoid(free)[:, None]
            su, order = use.sort(1)
            alloc = torch.zeros_like(su).scatter(
                1, order, (1 - su) * F.pad(su[:, :-1], (1, 0), value=1.0).cumprod(1)
            )
            cw = (F.cosine_similarity(M, kw[:, None], -1) * F.softplus(bw)[:, None]).softmax(1)
            ga = torch.sigmoid(ga)[:, None]
            ww = torch.sigmoid(gw)[:, None] * (ga * alloc + (1 - ga) * cw)
            M = M * (1 - ww[..., None] * torch.sigmoid(e)[:, None]) + ww[..., None] * torch.tanh(kw)[:, None]
            rw = (F.cosine_similarity(M, kr[:, None], -1) * F.softplus(br)[:, None]).softmax(1)
            read = torch.einsum("bs,bsw->bw", rw, M)
            ys.append(self.out(torch.cat([h, read], 1)))
        return F.mse_loss(torch.stack(ys, 1), x)
