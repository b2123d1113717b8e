"""Recurrences over time: cells in loops, scans, states kept for every step."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class LSTMCellTagger(nn.Module):
    def __init__(self, vocab: int = 20000, emb: int = 128, hid: int = 256, tags: int = 45) -> None:
        super().__init__()
        self.hid = hid
        self.embedding = nn.Embedding(vocab, emb)
        self.fwd, self.bwd = nn.LSTMCell(emb, hid), nn.LSTMCell(emb, hid)
        self.hidden2tag = nn.Linear(2 * hid, tags)

    def run(self, cell: nn.Module, x: Tensor, order: list[int]) -> list[Tensor]:
        h = c = x.new_zeros(x.size(0), self.hid)
        outs: list[Tensor] = [h] * len(order)
        for t in order:
            h, c = cell(x[:, t], (h, c))
            outs[t] = h
        return outs

    def forward(self, sentence: Tensor) -> Tensor:
        x = self.embedding(sentence)
        steps = list(range(x.size(1)))
        f, b = self.run(self.fwd, x, steps), self.run(self.bwd, x, steps[::-1])
        return self.hidden2tag(torch.cat([torch.stack(f, 1), torch.stack(b, 1)], -1))


class AttnDecoderGRU(nn.Module):
    def __init__(self, vocab: int = 8000, hidden: int = 256) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(vocab, hidden), nn.GRU(hidden, hidden, batch_first=True)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.Wa, self.Ua, self.Va = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        enc, h = self.encoder(self.embed(src))
        h, keys, logits = h[0], self.Ua(enc), []
        for t in range(tgt.size(1)):
            score = self.Va(torch.tanh(self.Wa(h).unsqueeze(1) + keys))
            ctx = (F.softmax(score, 1) * enc).sum(1)
            e = self.embed(tgt[:, t])
            h = self.cell(torch.cat([e, ctx.to(e.dtype)], -1), h)
            logits.append(self.out(h))
        return torch.stack(logits, 1)


class PointerNet(nn.Module):
    def __init__(self, feats: int = 2, hidden: int = 128) -> None:
        super().__init__()
        self.enc, self.dec = nn.LSTM(feats, hidden, batch_first=True), nn.LSTMCell(feats, hidden)
        self.w1, self.w2, self.v = (
            nn.Linear(hidden, hidden, False),
            nn.Linear(hidden, hidden, False),
            nn.Linear(hidden, 1, False),
        )

    def forward(self, cities: Tensor) -> Tensor:
        e, (h, c) = self.enc(cities)
        h, c, x, keys = h[0], c[0], cities[:, 0], self.w1(e)
        scores = []
        for _ in range(cities.size(1)):
            h, c = self.dec(x, (h, c))
            u = self.v(torch.tanh(keys + self.w2(h)[:, None])).squeeze(-1)
            p = u.softmax(-1)
            x = torch.bmm(p.unsqueeze(1).to(cities.dtype), cities).squeeze(1).to(cities.dtype)
            scores.append(u)
        return torch.stack(scores, 1)


class S4DLayer(nn.Module):
    """A diagonal state space, its kernel computed again in each step and applied by FFT."""

    def __init__(self, d: int, n: int) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(d) * -3)
        self.log_re, self.im = nn.Parameter(torch.zeros(d, n)), nn.Parameter(torch.randn(d, n))
        self.c = nn.Parameter(torch.randn(d, n, 2))
        self.skip, self.mix = nn.Parameter(torch.ones(d)), nn.Linear(d, 2 * d)

    def forward(self, u: Tensor) -> Tensor:
        L = u.size(1)
        a = torch.complex(-self.log_re.float().exp(), self.im.float()) * self.log_dt.float().exp()[:, None]
        powers = torch.exp(a[..., None] * torch.arange(L, device=u.device))
        k = torch.einsum("dn,dnl->dl", torch.view_as_complex(self.c.float().contiguous()), powers).real
        f = torch.fft.rfft(u.transpose(1, 2).float(), 2 * L) * torch.fft.rfft(k, 2 * L)
        y = torch.fft.irfft(f, 2 * L)[..., :L].transpose(1, 2).to(u.dtype) + u * self.skip
        a1, g = self.mix(F.gelu(y)).chunk(2, -1)
        return u + a1 * torch.sigmoid(g)


class S4Classifier(nn.Module):
    def __init__(self, d: int = 128, n: int = 16, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, d)
        self.layers = nn.ModuleList(S4DLayer(d, n) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.decoder = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        for layer, norm in zip(self.layers, self.norms):
            x = norm(layer(x))
        return self.decoder(x.mean(1))


class MambaByHand(nn.Module):
    def __init__(self, d: int, state: int) -> None:
        super().__init__()
        self.n = state
        self.in_proj, self.conv = nn.Linear(d, 2 * d), nn.Conv1d(d, d, 4, padding=3, groups=d)
        self.dt, self.bc, self.out = nn.Linear(d, d), nn.Linear(d, 2 * state), nn.Linear(d, d)
        self.A_log = nn.Parameter(torch.zeros(d, state))
        self.D = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        T = x.size(1)
        u, z = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :T].transpose(1, 2))
        dt = F.softplus(self.dt(u))
        b, c = self.bc(u).chunk(2, -1)
        da = torch.exp(dt.unsqueeze(-1) * -self.A_log.exp())
        db = dt.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        h, ys = torch.zeros_like(db[:, 0]), []
        for t in range(T):
            h = da[:, t] * h + db[:, t]
            ys.append((h * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(ys, 1) + u * self.D
        return x + self.out((y * F.silu(z)).to(x.dtype))


class SelectiveScanLM(nn.Module):
    def __init__(self, vocab: int = 2000, d: int = 128, state: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(MambaByHand(d, state) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class MinGRU(nn.Module):
    """A parallel scan in log space."""

    def __init__(self, d: int = 256, layers: int = 4, feats: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.inp = nn.Linear(feats, d)
        self.hg = nn.ModuleList(nn.Linear(d, 2 * d) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.out = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for hg, norm in zip(self.hg, self.norm):
            hidden, gate = hg(norm(x)).chunk(2, -1)
            log_a = -F.softplus(gate)
            log_v = -F.softplus(-gate) + torch.where(
                hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden)
            )
            a_star = F.pad(log_a.cumsum(1), (0, 0, 1, 0))[:, :-1] + log_a
            x = x + (a_star + (log_v - a_star).logcumsumexp(1)).exp().to(x.dtype)
        return self.out(x)


class QRNN(nn.Module):
    def __init__(self, vocab: int = 10000, d: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.convs = nn.ModuleList(nn.Conv1d(d, 3 * d, 2) for _ in range(layers))
        self.fc = nn.Linear(d, vocab)

    def forward(self, w: Tensor) -> Tensor:
        x = self.emb(w).transpose(1, 2)
        for conv in self.convs:
            z, f, o = conv(F.pad(x, (1, 0))).chunk(3, 1)
            z, f = torch.tanh(z), torch.sigmoid(f)
            c = torch.zeros_like(z[..., 0])
            cs = []
            for t in range(x.size(-1)):
                c = f[..., t] * c + (1 - f[..., t]) * z[..., t]
                cs.append(c)
            x = torch.sigmoid(o) * torch.stack(cs, -1)
        return self.fc(x.transpose(1, 2))


class NeuralTuring(nn.Module):
    def __init__(self, width: int = 9, slots: int = 64, m: int = 32, hid: int = 100) -> None:
        super().__init__()
        self.slots, self.m, self.hid = slots, m, hid
        self.ctrl = nn.LSTMCell(width + m, hid)
        self.key, self.beta, self.erase, self.add = (
            nn.Linear(hid, m),
            nn.Linear(hid, 1),
            nn.Linear(hid, m),
            nn.Linear(hid, m),
        )
        self.out = nn.Linear(hid + m, width)

    def forward(self, x: Tensor) -> Tensor:
        b = x.size(0)
        mem = x.new_full((b, self.slots, self.m), 1e-2)
        h = c = x.new_zeros(b, self.hid)
        r, ys = x.new_zeros(b, self.m), []
        for t in range(x.size(1)):
            h, c = self.ctrl(torch.cat([x[:, t], r], -1), (h, c))
            k = torch.tanh(self.key(h))
            w = F.softmax(F.softplus(self.beta(h)) * F.cosine_similarity(mem, k[:, None], dim=-1), -1).to(
                x.dtype
            )
            mem = (
                mem * (1 - w[..., None] * torch.sigmoid(self.erase(h))[:, None])
                + w[..., None] * self.add(h)[:, None]
            )
            r = (w[..., None] * mem).sum(1).to(x.dtype)
            ys.append(self.out(torch.cat([h, r], -1)))
        return torch.stack(ys, 1)


class ConvLSTMCell(nn.Module):
    def __init__(self, cin: int, ch: int) -> None:
        super().__init__()
        self.ch, self.conv = ch, nn.Conv2d(cin + ch, 4 * ch, 3, padding=1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = self.conv(torch.cat([x, h], 1)).split(self.ch, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Nowcaster(nn.Module):
    def __init__(self, ch: int = 32, ahead: int = 4) -> None:
        super().__init__()
        self.enc, self.dec, self.ahead = ConvLSTMCell(1, ch), ConvLSTMCell(ch, ch), ahead
        self.pred = nn.Conv2d(ch, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        h = c = frames.new_zeros(frames.size(0), self.enc.ch, *frames.shape[-2:])
        for t in range(frames.size(1)):
            h, c = self.enc(frames[:, t], h, c)
        outs, x = [], h
        for _ in range(self.ahead):
            h, c = self.dec(x, h, c)
            x = h
            outs.append(torch.sigmoid(self.pred(h)))
        return torch.stack(outs, 1)


class LiquidODE(nn.Module):
    """An ODE cell with six solver steps per input."""

    def __init__(self, feats: int = 12, hid: int = 128, unfold: int = 6) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(feats, hid), nn.Linear(hid, hid, bias=False)
        self.A, self.tau = nn.Parameter(torch.randn(hid)), nn.Parameter(torch.zeros(hid))
        self.unfold, self.out = unfold, nn.Linear(hid, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, ys, inputs = x.new_zeros(x.size(0), self.A.numel()), [], self.w(x)
        for t in range(x.size(1)):
            for _ in range(self.unfold):
                f = torch.sigmoid(inputs[:, t] + self.u(h))
                h = (h + 0.1 * f * self.A) / (1 + 0.1 * (F.softplus(self.tau) + f))
            ys.append(self.out(h.to(x.dtype)))
        return torch.stack(ys, 1)


class ClockworkRNN(nn.Module):
    def __init__(self, feats: int = 40, hid: int = 64, modules: int = 4, classes: int = 61) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(feats if i == 0 else feats + hid, hid) for i in range(modules))
        self.hid, self.unused = hid, nn.Linear(feats, 2048)
        self.head = nn.Linear(hid * modules, classes)

    def forward(self, x: Tensor) -> Tensor:
        hs = [x.new_zeros(x.size(0), self.hid) for _ in self.cells]
        outs = []
        for t in range(x.size(1)):
            for i, cell in enumerate(self.cells):
                if t % (2**i) == 0:
                    inp = x[:, t] if i == 0 else torch.cat([x[:, t], hs[i - 1].to(x.dtype)], 1)
                    hs[i] = cell(inp, hs[i])
            outs.append(torch.cat(hs, -1))
        return self.head(torch.stack(outs, 1))
