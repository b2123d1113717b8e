"""Time series, audio, operators: blocks over time written without a library."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class NBeatsBlock(nn.Module):
    def __init__(self, t: int, h: int, width: int) -> None:
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(t if i == 0 else width, width) for i in range(4))
        self.back, self.fore = nn.Linear(width, t), nn.Linear(width, h)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for f in self.fc:
            x = F.relu(f(x))
        return self.back(x), self.fore(x)


class NBeats(nn.Module):
    def __init__(self, t: int = 168, h: int = 24, width: int = 512, n: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NBeatsBlock(t, h, width) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for i, b in enumerate(self.blocks):
            back, fore = b(x)
            x = x - back
            total = fore if i == 0 else total + fore
        return total


class GatedTCN(nn.Module):
    def __init__(self, feats: int = 8, c: int = 64, n: int = 6, out: int = 1) -> None:
        super().__init__()
        self.inp = nn.Conv1d(feats, c, 1)
        self.f, self.g = (
            nn.ModuleList(nn.Conv1d(c, c, 3, dilation=2**i) for i in range(n)) for _ in range(2)
        )
        self.skip, self.res = (nn.ModuleList(nn.Conv1d(c, c, 1) for _ in range(n)) for _ in range(2))
        self.end = nn.Conv1d(c, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.inp(x), 0
        for i, (f, g, s, r) in enumerate(zip(self.f, self.g, self.skip, self.res)):
            p = F.pad(x, (2 * 2**i, 0))
            h = torch.tanh(f(p)) * torch.sigmoid(g(p))
            total = total + s(h)
            x = x + r(h)
        return self.end(F.relu(total))


class ProbSparseLayer(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        u = min(T, 5 * math.ceil(math.log(T)))
        q, k, v = self.qkv(x).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        idx = torch.randint(T, (T, u), device=x.device)
        sample = torch.matmul(q.unsqueeze(-2), k[:, :, idx].transpose(-2, -1)).squeeze(-2)
        top = (sample.max(-1)[0] - sample.mean(-1)).topk(u, sorted=False)[1]
        qs = q.gather(2, top.unsqueeze(-1).expand(-1, -1, -1, q.size(-1)))
        a = torch.softmax(qs @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1).to(v.dtype) @ v
        ctx = v.mean(2, keepdim=True).expand_as(v).clone()
        ctx = ctx.scatter(2, top.unsqueeze(-1).expand_as(a), a.to(ctx.dtype))
        return self.o(ctx.transpose(1, 2).reshape(B, T, D))


class InformerLike(nn.Module):
    def __init__(self, feats: int = 7, d: int = 128, n: int = 3, h: int = 8, out: int = 24) -> None:
        super().__init__()
        self.token = nn.Conv1d(feats, d, 3, padding=1, padding_mode="circular")
        self.att = nn.ModuleList(ProbSparseLayer(d, h) for _ in range(n))
        self.c1 = nn.ModuleList(nn.Conv1d(d, 4 * d, 1) for _ in range(n))
        self.c2 = nn.ModuleList(nn.Conv1d(4 * d, d, 1) for _ in range(n))
        self.n = nn.ModuleList(nn.LayerNorm(d) for _ in range(n))
        self.proj = nn.Linear(d, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token(x.transpose(1, 2)).transpose(1, 2)
        for a, c1, c2, n in zip(self.att, self.c1, self.c2, self.n):
            x = x + F.dropout(a(x), 0.05)
            y = c2(F.gelu(c1(x.transpose(1, 2))))
            x = n(x + y.transpose(1, 2))
            x = F.max_pool1d(F.elu(x.transpose(1, 2)), 3, 2, 1).transpose(1, 2)
        return self.proj(x.mean(1))


class AutoCorrelationNet(nn.Module):
    """Delays found by FFT, the series rolled and summed."""

    def __init__(self, feats: int = 7, d: int = 64, n: int = 2, k: int = 5, kernel: int = 25) -> None:
        super().__init__()
        self.emb, self.k, self.kernel = nn.Linear(feats, d), k, kernel
        self.q, self.key, self.v, self.ff = (
            nn.ModuleList(nn.Linear(d, d) for _ in range(n)) for _ in range(4)
        )
        self.out = nn.Linear(d, feats)

    def decompose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pad = self.kernel // 2
        trend = F.avg_pool1d(
            F.pad(x.transpose(1, 2), (pad, pad), mode="replicate"), self.kernel, 1
        ).transpose(1, 2)
        return x - trend, trend

    def forward(self, x: Tensor) -> Tensor:
        x = self.emb(x)
        T, trends = x.size(1), torch.zeros_like(x)
        for q, k, v, ff in zip(self.q, self.key, self.v, self.ff):
            fq, fk = torch.fft.rfft(q(x).float(), dim=1), torch.fft.rfft(k(x).float(), dim=1)
            corr = torch.fft.irfft(fq * fk.conj(), n=T, dim=1).mean(-1)
            w, delay = corr.topk(self.k, -1)
            w, val = w.softmax(-1).to(x.dtype), v(x)
            t = torch.arange(T, device=x.device)
            y = torch.zeros_like(val)
            for i in range(self.k):
                idx = (t[None] + delay[:, i, None]) % T
                y = y + val.gather(1, idx.unsqueeze(-1).expand_as(val)) * w[:, i, None, None]
            x, trend = self.decompose(x + y)
            x = x + F.gelu(ff(x))
            trends = trends + trend
        return self.out(x + trends)


class PatchSeries(nn.Module):
    def __init__(self, patch: int = 16, stride: int = 8, d: int = 128, n: int = 3, out: int = 96) -> None:
        super().__init__()
        self.patch, self.stride = patch, stride
        self.emb = nn.Linear(patch, d)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 8, 256, batch_first=True), n)
        self.head = nn.Linear(d, out)

    def forward(self, x: Tensor) -> Tensor:
        m, s = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        x = ((x - m) / s).transpose(1, 2)
        p = x.unfold(-1, self.patch, self.stride)
        B, C, N, _ = p.shape
        h = self.enc(self.emb(p.reshape(B * C, N, self.patch)))
        y = self.head(h.mean(1)).view(B, C, -1).transpose(1, 2)
        return y * s + m


class TimesBlockNet(nn.Module):
    """Folds the series by its strongest periods into pictures."""

    def __init__(self, feats: int = 7, d: int = 32, n: int = 2) -> None:
        super().__init__()
        self.emb, self.out = nn.Linear(feats, d), nn.Linear(d, feats)
        self.conv = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(d, d, k, padding=k // 2) for k in (1, 3, 5, 7)) for _ in range(n)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.emb(x)
        B, T, D = x.shape
        for convs in self.conv:
            ys = []
            for period in (24, 12, 6):
                pad = (-T) % period
                img = F.pad(x, (0, 0, 0, pad)).view(B, -1, period, D).permute(0, 3, 1, 2)
                y = F.gelu(torch.stack([c(img) for c in convs]).mean(0))
                ys.append(y.permute(0, 2, 3, 1).reshape(B, -1, D)[:, :T])
            x = x + torch.stack(ys, -1).mean(-1)
        return self.out(x)


class FNO2d(nn.Module):
    def __init__(self, width: int = 32, modes: int = 12, n: int = 4) -> None:
        super().__init__()
        self.m, self.lift, self.p1, self.p2 = (
            modes,
            nn.Linear(3, width),
            nn.Linear(width, 128),
            nn.Linear(128, 1),
        )
        self.w = nn.ParameterList(
            nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width**2) for _ in range(n)
        )
        self.conv = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(n))

    def forward(self, a: Tensor) -> Tensor:
        x, m = self.lift(a).permute(0, 3, 1, 2), self.m
        for w, c in zip(self.w, self.conv):
            f = torch.fft.rfft2(x.float())
            wc = torch.view_as_complex(w.float().contiguous())
            out = torch.zeros_like(f)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], wc[0])
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], wc[1])
            x = F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]).to(x.dtype) + c(x))
        return self.p2(F.gelu(self.p1(x.permute(0, 2, 3, 1)))).squeeze(-1)


class DeepONet(nn.Module):
    def __init__(self, sensors: int = 100, hid: int = 256, p: int = 128) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(sensors, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh(), nn.Linear(hid, p)
        )
        self.trunk = nn.Sequential(
            nn.Linear(2, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh(), nn.Linear(hid, p)
        )
        self.b0 = nn.Parameter(torch.zeros(1))

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("bp,bqp->bq", self.branch(u), self.trunk(y)) + self.b0


class SpectroCNN(nn.Module):
    """Frames, window and FFT in forward, then convolutions over the picture."""

    def __init__(
        self, n_fft: int = 512, hop: int = 128, mels: int = 64, c: int = 32, classes: int = 35
    ) -> None:
        super().__init__()
        self.n, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.mel = nn.Parameter(torch.rand(n_fft // 2 + 1, mels), requires_grad=False)
        self.c1, self.c2, self.c3 = (
            nn.Conv2d(1, c, 3, padding=1),
            nn.Conv2d(c, 2 * c, 3, padding=1),
            nn.Conv2d(2 * c, 4 * c, 3, padding=1),
        )
        self.fc = nn.Linear(4 * c, classes)

    def forward(self, wav: Tensor) -> Tensor:
        frames = wav.float().unfold(-1, self.n, self.hop) * self.window.float()
        power = torch.fft.rfft(frames).abs().pow(2)
        x = torch.log1p(power @ self.mel.float().abs()).to(wav.dtype).unsqueeze(1)
        for c in (self.c1, self.c2, self.c3):
            x = F.max_pool2d(F.relu(c(x)), 2)
        return self.fc(x.mean((2, 3)))


class ConvTasNet(nn.Module):
    def __init__(self, n: int = 128, b: int = 64, blocks: int = 6, sources: int = 2) -> None:
        super().__init__()
        self.s, self.n = sources, n
        self.enc, self.dec = nn.Conv1d(1, n, 16, 8), nn.ConvTranspose1d(n, 1, 16, 8)
        self.bottle, self.mask = nn.Conv1d(n, b, 1), nn.Conv1d(b, n * sources, 1)
        self.up = nn.ModuleList(nn.Conv1d(b, 2 * b, 1) for _ in range(blocks))
        self.dw = nn.ModuleList(
            nn.Conv1d(2 * b, 2 * b, 3, padding=2**i, dilation=2**i, groups=2 * b) for i in range(blocks)
        )
        self.down = nn.ModuleList(nn.Conv1d(2 * b, b, 1) for _ in range(blocks))
        self.gn = nn.ModuleList(nn.GroupNorm(1, 2 * b) for _ in range(blocks))

    def forward(self, mix: Tensor) -> Tensor:
        w = F.relu(self.enc(mix))
        x = self.bottle(w)
        for u, d, o, g in zip(self.up, self.dw, self.down, self.gn):
            x = x + o(F.leaky_relu(g(d(F.leaky_relu(u(x))))))
        m = torch.sigmoid(self.mask(x)).view(-1, self.s, self.n, w.size(-1))
        y = self.dec((m * w.unsqueeze(1)).flatten(0, 1)).view(mix.size(0), self.s, -1)
        ref = mix[..., : y.size(-1)]
        return -10 * torch.log10((ref**2).mean() / ((y - ref).float() ** 2).mean(-1).clamp(min=1e-6)).mean()


class CTCListener(nn.Module):
    def __init__(self, mels: int = 80, hid: int = 256, chars: int = 40) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 32, (11, 11), (2, 2), (5, 5))
        self.rnn = nn.GRU(32 * mels // 2, hid, 2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hid, chars)

    def forward(self, spec: Tensor, text: Tensor) -> Tensor:
        x = F.hardtanh(self.conv(spec.unsqueeze(1)), 0, 20)
        x, _ = self.rnn(x.transpose(1, 2).flatten(2))
        lp = self.fc(x).float().log_softmax(-1).transpose(0, 1)
        n = torch.full((lp.size(1),), lp.size(0), dtype=torch.long, device=lp.device)
        m = torch.full((lp.size(1),), text.size(1), dtype=torch.long, device=lp.device)
        return F.ctc_loss(lp, text.clamp(min=1), n, m, zero_infinity=True)


class MultiScaleWave(nn.Module):
    """Down and up with concatenated skips over raw samples."""

    def __init__(self, c: int = 24, n: int = 5) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv1d(1 if i == 0 else c * i, c * (i + 1), 15, padding=7) for i in range(n)
        )
        self.up = nn.ModuleList(
            nn.Conv1d(c * (i + 1) + c * (i + 2), c * (i + 1), 5, padding=2) for i in range(n - 1)
        )
        self.out = nn.Conv1d(c + 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        inp, skips = x, []
        for d in self.down:
            x = F.leaky_relu(d(x))
            skips.append(x)
            x = x[..., ::2]
        x = skips.pop()
        for u in reversed(self.up):
            s = skips.pop()
            x = F.leaky_relu(u(torch.cat([F.interpolate(x, size=s.size(-1), mode="linear"), s], 1)))
        return torch.tanh(self.out(torch.cat([x, inp], 1)))
