"""Generative models: codebooks, flows, diffusion, adversaries, fields of rays."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class VQCodebook(nn.Module):
    def __init__(self, codes: int, d: int) -> None:
        super().__init__()
        self.book = nn.Embedding(codes, d)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.size(1))
        w = self.book.weight
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ w.t() + w.pow(2).sum(1)
        q = self.book(dist.argmin(1)).view(z.size(0), *z.shape[2:], -1).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
        return z + (q - z).detach(), loss


class VQVAE(nn.Module):
    def __init__(self, c: int = 64, codes: int = 1024, d: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, d, 1)
        )
        self.vq = VQCodebook(codes, d)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(d, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, loss = self.vq(self.encoder(x))
        rec = self.decoder(q)
        return F.l1_loss(rec, x) + loss, rec


class ResidualVQ(nn.Module):
    """Soft codes: the distances to every code are kept, four times over."""

    def __init__(self, codes: int = 512, d: int = 48, stages: int = 4, c: int = 32) -> None:
        super().__init__()
        self.enc, self.dec = nn.Conv1d(1, d, 16, 8, 4), nn.ConvTranspose1d(d, 1, 16, 8, 4)
        self.books = nn.Parameter(torch.randn(stages, codes, d))

    def forward(self, wav: Tensor) -> Tensor:
        r = self.enc(wav).transpose(1, 2)
        total = torch.zeros_like(r)
        for book in self.books:
            p = F.softmax(-torch.cdist(r.float(), book.float().expand(r.size(0), -1, -1)), -1).to(r.dtype)
            q = p @ book
            total, r = total + q, r - q
        return F.mse_loss(self.dec(total.transpose(1, 2)), wav)


class AffineCoupling(nn.Module):
    def __init__(self, d: int, hid: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d // 2, hid), nn.ReLU(), nn.Linear(hid, hid), nn.ReLU(), nn.Linear(hid, d)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        s, t = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        return torch.cat([b * s.exp() + t, a], -1).to(x.dtype), s.sum(-1)


class RealNVP(nn.Module):
    def __init__(self, d: int = 64, hid: int = 512, n: int = 8) -> None:
        super().__init__()
        self.flows = nn.ModuleList(AffineCoupling(d, hid) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.size(0))
        for f in self.flows:
            x, ld = f(x)
            logdet = logdet + ld
        return (0.5 * x.pow(2).sum(-1) - logdet).mean()


class GlowStep(nn.Module):
    def __init__(self, c: int, hid: int) -> None:
        super().__init__()
        self.logs, self.bias = nn.Parameter(torch.zeros(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))
        self.w = nn.Parameter(torch.eye(c))
        self.c1, self.c2, self.c3 = (
            nn.Conv2d(c // 2, hid, 3, padding=1),
            nn.Conv2d(hid, hid, 1),
            nn.Conv2d(hid, c, 3, padding=1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = (x + self.bias) * torch.exp(self.logs).to(x.dtype)
        w = self.w + torch.eye(self.w.size(0), device=x.device, dtype=self.w.dtype)
        x = F.conv2d(x, w[..., None, None])
        a, b = x.chunk(2, 1)
        s, t = self.c3(F.relu(self.c2(F.relu(self.c1(a))))).chunk(2, 1)
        s = torch.sigmoid(s + 2)
        return torch.cat([a, (b + t) * s], 1), torch.log(s).sum((1, 2, 3))


class Glow(nn.Module):
    def __init__(self, hid: int = 128, steps: int = 6) -> None:
        super().__init__()
        self.l1 = nn.ModuleList(GlowStep(12, hid) for _ in range(steps))
        self.l2 = nn.ModuleList(GlowStep(24, hid) for _ in range(steps))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        ld = x.new_zeros(x.size(0))
        x = F.pixel_unshuffle(x, 2)
        for s in self.l1:
            x, d = s(x)
            ld = ld + d
        x, z1 = x.chunk(2, 1)
        x = F.pixel_unshuffle(x, 2)
        for s in self.l2:
            x, d = s(x)
            ld = ld + d
        nll = 0.5 * (x.pow(2).flatten(1).sum(1) + z1.pow(2).flatten(1).sum(1)) - ld
        return {"loss": nll.mean() / 3072, "z": x}


class SplineFlow(nn.Module):
    def __init__(self, d: int = 32, bins: int = 16, n: int = 4, hid: int = 256) -> None:
        super().__init__()
        self.bins = bins
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(d, hid), nn.Tanh(), nn.Linear(hid, d * (3 * bins + 1))) for _ in range(n)
        )

    def forward(self, x: Tensor) -> Tensor:
        ll = x.new_zeros(x.size(0))
        for net in self.nets:
            p = net(x.roll(1, -1)).view(*x.shape, -1)
            w, h, d = p.split([self.bins, self.bins, self.bins + 1], -1)
            w, h, d = w.softmax(-1), h.softmax(-1), F.softplus(d)
            cw, ch = F.pad(w.cumsum(-1), (1, 0)), F.pad(h.cumsum(-1), (1, 0))
            u = torch.sigmoid(x)
            i = (u.unsqueeze(-1) >= cw).sum(-1, keepdim=True).clamp(1, self.bins) - 1
            x0, y0, wi, hi, di = (t.gather(-1, i).squeeze(-1) for t in (cw, ch, w, h, d))
            t = (u - x0) / (wi + 1e-4)
            y = y0 + hi * (t**2 + di * t * (1 - t)) / (1 + di)
            ll = ll + torch.log(di + 1e-3).sum(-1)
            x = (x + torch.logit(y.clamp(1e-3, 1 - 1e-3))).to(x.dtype) * 0.5
        return (x.pow(2).sum(-1) - ll).mean()


def timestep(t: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    f = torch.exp(-math.log(10000) * torch.arange(d // 2, device=t.device) / (d // 2))
    a = t[:, None].float() * f
    return torch.cat([a.sin(), a.cos()], -1).to(dtype)


class ResTimeBlock(nn.Module):
    def __init__(self, a: int, b: int, t: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.c1, self.c2, self.t = (
            nn.Conv2d(a, b, 3, padding=1),
            nn.Conv2d(b, b, 3, padding=1),
            nn.Linear(t, 2 * b),
        )
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.t(F.silu(t))[..., None, None].chunk(2, 1)
        return self.skip(x) + self.c2(F.silu(self.n2(h) * (1 + scale) + shift))


class DDPMUnet(nn.Module):
    """Noises its input, predicts the noise and returns the loss."""

    def __init__(self, c: int = 64, img: int = 3) -> None:
        super().__init__()
        self.c = c
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.inc, self.out = nn.Conv2d(img, c, 3, padding=1), nn.Conv2d(c, img, 3, padding=1)
        self.d1, self.d2, self.mid = (
            ResTimeBlock(c, c, 4 * c),
            ResTimeBlock(c, 2 * c, 4 * c),
            ResTimeBlock(2 * c, 2 * c, 4 * c),
        )
        self.u2, self.u1, self.qkv = (
            ResTimeBlock(4 * c, c, 4 * c),
            ResTimeBlock(2 * c, c, 4 * c),
            nn.Conv1d(2 * c, 6 * c, 1),
        )
        self.register_buffer("acp", torch.linspace(0.999, 0.01, 1000))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        a = self.acp[t].view(-1, 1, 1, 1).clamp(0.01, 0.99)
        y = self.inc(a.sqrt() * x + (1 - a).sqrt() * noise)
        e = self.time(timestep(t, self.c, x.dtype))
        h1 = self.d1(y, e)
        h2 = self.d2(F.avg_pool2d(h1, 2), e)
        m = self.mid(F.avg_pool2d(h2, 2), e)
        q, k, v = self.qkv(m.flatten(2)).chunk(3, 1)
        m = m + torch.einsum(
            "bij,bcj->bci", torch.einsum("bci,bcj->bij", q, k).softmax(-1).to(v.dtype), v
        ).view_as(m)
        u = self.u2(torch.cat([F.interpolate(m, scale_factor=2), h2], 1), e)
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2), h1], 1), e)
        return F.mse_loss(self.out(u), noise)


class GanPair(nn.Module):
    """Generator and discriminator in one module, both losses in one pass."""

    def __init__(self, z: int = 128, c: int = 64) -> None:
        super().__init__()
        self.z, self.fc = z, nn.Linear(z, 8 * c * 16)
        self.g = nn.ModuleList(nn.ConvTranspose2d(a * c, b * c, 4, 2, 1) for a, b in ((8, 4), (4, 2), (2, 1)))
        self.gb = nn.ModuleList(nn.BatchNorm2d(b * c) for b in (4, 2, 1))
        self.to_rgb = nn.ConvTranspose2d(c, 3, 4, 2, 1)
        self.d = nn.ModuleList(
            nn.Conv2d(a, b * c, 4, 2, 1) for a, b in ((3, 1), (c, 2), (2 * c, 4), (4 * c, 8))
        )
        self.score = nn.Linear(8 * c * 16, 1)

    def generate(self, n: int, like: Tensor) -> Tensor:
        h = self.fc(torch.randn(n, self.z, device=like.device, dtype=like.dtype)).view(n, -1, 4, 4)
        for up, bn in zip(self.g, self.gb):
            h = F.relu(bn(up(h)))
        return torch.tanh(self.to_rgb(h))

    def judge(self, x: Tensor) -> Tensor:
        for c in self.d:
            x = F.leaky_relu(c(x), 0.2)
        return self.score(x.flatten(1))

    def forward(self, real: Tensor) -> Tensor:
        fake = self.generate(real.size(0), real)
        d_loss = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake.detach())).mean()
        return d_loss + F.softplus(-self.judge(fake)).mean()


class NerfField(nn.Module):
    """Samples along rays, positional encoding, volume rendering."""

    def __init__(self, freqs: int = 10, width: int = 128, layers: int = 5, samples: int = 64) -> None:
        super().__init__()
        self.L, self.n = freqs, samples
        d = 3 + 6 * freqs
        self.mlp = nn.ModuleList(
            nn.Linear(d if i == 0 else width + (d if i == 3 else 0), width) for i in range(layers)
        )
        self.sigma, self.rgb = nn.Linear(width, 1), nn.Linear(width + 3, 3)

    def encode(self, x: Tensor) -> Tensor:
        out = [x]
        for i in range(self.L):
            out += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
        return torch.cat(out, -1)

    def forward(self, o: Tensor, d: Tensor) -> Tensor:
        t = torch.linspace(2, 6, self.n, device=o.device, dtype=o.dtype)
        pts = o[:, None] + d[:, None] * t[:, None]
        e = self.encode(pts)
        h = e
        for i, lin in enumerate(self.mlp):
            h = F.relu(lin(torch.cat([h, e], -1) if i == 3 else h))
        sigma = F.relu(self.sigma(h)).squeeze(-1)
        rgb = torch.sigmoid(self.rgb(torch.cat([h, d[:, None].expand(-1, self.n, -1)], -1)))
        alpha = 1 - torch.exp(-sigma * (4 / self.n))
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * trans).unsqueeze(-1) * rgb).sum(1)


class HashGrid(nn.Module):
    def __init__(self, levels: int = 8, table: int = 65536, f: int = 2, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(levels, table, f) * 1e-2)
        self.net = nn.Sequential(
            nn.Linear(levels * f, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        feats, x = [], torch.sigmoid(x)
        for level in range(self.tables.size(0)):
            g = x * (16 * 1.5**level)
            lo = g.floor()
            w = g - lo
            acc = torch.zeros_like(x[..., :1])
            for c in range(4):
                off = torch.tensor([c & 1, c >> 1], device=x.device)
                idx = (
                    (lo[..., 0].long() + off[0]) ^ ((lo[..., 1].long() + off[1]) * 2654435761)
                ) % self.tables.size(1)
                weight = (w[..., 0] if c & 1 else 1 - w[..., 0]) * (w[..., 1] if c >> 1 else 1 - w[..., 1])
                acc = acc + weight.unsqueeze(-1) * self.tables[level][idx]
            feats.append(acc)
        return self.net(torch.cat(feats, -1))


class BetaVAE3d(nn.Module):
    def __init__(self, c: int = 16, z: int = 64) -> None:
        super().__init__()
        self.e = nn.ModuleList(nn.Conv3d(a, b, 4, 2, 1) for a, b in ((1, c), (c, 2 * c), (2 * c, 4 * c)))
        self.back = nn.Linear(z, 4 * c * 64)
        self.mu, self.lv = nn.Linear(4 * c * 64, z), nn.Linear(4 * c * 64, z)
        self.d = nn.ModuleList(
            nn.ConvTranspose3d(a, b, 4, 2, 1) for a, b in ((4 * c, 2 * c), (2 * c, c), (c, 1))
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = x
        for e in self.e:
            h = F.leaky_relu(e(h))
        mu, lv = self.mu(h.flatten(1)), self.lv(h.flatten(1))
        z = mu + (0.5 * lv).exp().to(mu.dtype) * torch.randn_like(mu)
        y = self.back(z).view(h.shape)
        for i, d in enumerate(self.d):
            y = d(F.relu(y) if i else y)
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(y, torch.sigmoid(x)) + 4 * kl / x[0].numel(), y, mu, lv


class PixelCNN(nn.Module):
    def __init__(self, c: int = 64, n: int = 6, levels: int = 64) -> None:
        super().__init__()
        self.inp = nn.Conv2d(3, 2 * c, 7, padding=3)
        self.convs = nn.ModuleList(nn.Conv2d(c, 2 * c, 5, padding=2) for _ in range(n))
        self.out = nn.Conv2d(c, 3 * levels, 1)
        mask = torch.ones(5, 5)
        mask[3:] = 0
        mask[2, 3:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.inp(x).chunk(2, 1)
        h = torch.tanh(a) * torch.sigmoid(b)
        for c in self.convs:
            a, b = F.conv2d(h, c.weight * self.mask, c.bias, padding=2).chunk(2, 1)
            h = h + torch.tanh(a) * torch.sigmoid(b)
        logits = self.out(h).unflatten(1, (3, -1)).permute(0, 1, 3, 4, 2)
        target = (torch.sigmoid(x) * (logits.size(-1) - 1)).long()
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)).float(), target.reshape(-1))


class ScoreMLP(nn.Module):
    """Sliced score matching: a gradient inside forward."""

    def __init__(self, d: int = 100, hid: int = 1024) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d, hid),
            nn.Softplus(),
            nn.Linear(hid, hid),
            nn.Softplus(),
            nn.Linear(hid, hid),
            nn.Softplus(),
            nn.Linear(hid, d),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        v = torch.randn_like(x)
        s = self.net(x)
        with torch.enable_grad():
            (g,) = torch.autograd.grad((s * v).sum(), x, create_graph=True)
        return ((g * v).sum(-1) + 0.5 * s.pow(2).sum(-1)).mean()
