"""Flows, energies, latent states and hypernetworks: gradients and samples in `forward`."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class MaskedFlow(nn.Module):
    """MAF: masks over plain linear layers."""

    def __init__(self, d: int = 64, h: int = 512, n: int = 5) -> None:
        super().__init__()
        self.d = d
        deg = torch.arange(h) % (d - 1)
        self.register_buffer("m1", (deg[:, None] >= torch.arange(d)[None]).float())
        self.register_buffer("m2", (deg[:, None] >= deg[None]).float())
        self.register_buffer("m3", (torch.arange(d)[:, None] > deg[None]).float().repeat(2, 1))
        self.l1 = nn.ModuleList(nn.Linear(d, h) for _ in range(n))
        self.l2 = nn.ModuleList(nn.Linear(h, h) for _ in range(n))
        self.l3 = nn.ModuleList(nn.Linear(h, 2 * d) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.size(0))
        for a, b, c in zip(self.l1, self.l2, self.l3):
            h = F.relu(F.linear(x, a.weight * self.m1.to(x.dtype), a.bias))  # type: ignore[operator, union-attr, arg-type]
            h = F.relu(F.linear(h, b.weight * self.m2.to(x.dtype), b.bias))  # type: ignore[operator, union-attr, arg-type]
            m, s = F.linear(h, c.weight * self.m3.to(x.dtype), c.bias).chunk(2, 1)  # type: ignore[operator, union-attr, arg-type]
            s = torch.tanh(s)
            x = ((x - m) * torch.exp(-s)).flip(1)
            logdet = logdet - s.sum(1)
        return (0.5 * (x**2).sum(1) - logdet).mean()


class ContinuousFlow(nn.Module):
    """FFJORD: fixed steps, the trace by a random vector (a gradient inside the forward)."""

    def __init__(self, d: int = 32, h: int = 256, steps: int = 8) -> None:
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(
            nn.Linear(d + 1, h), nn.Softplus(), nn.Linear(h, h), nn.Softplus(), nn.Linear(h, d)
        )

    def forward(self, x: Tensor) -> Tensor:
        e = torch.randn_like(x)
        z, logp = x.requires_grad_(), x.new_zeros(x.size(0))
        for k in range(self.steps):
            t = torch.full_like(z[:, :1], k / self.steps)
            f = self.net(torch.cat([z, t], 1))
            (g,) = torch.autograd.grad((f * e).sum(), z, create_graph=True)
            z, logp = z + f / self.steps, logp - (g * e).sum(1) / self.steps
        return (0.5 * (z**2).sum(1) - logp).mean()


class HamiltonNet(nn.Module):
    def __init__(self, d: int = 24, h: int = 512) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2 * d, h), nn.Linear(h, h), nn.Linear(h, 1)

    def forward(self, x: Tensor, dx: Tensor) -> Tensor:
        x = x.requires_grad_()
        e = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        (g,) = torch.autograd.grad(e.sum(), x, create_graph=True)
        p, q = g.chunk(2, 1)
        return F.mse_loss(torch.cat([q, -p], 1), dx)


class EnergyLangevin(nn.Module):
    """Samples drawn by gradient steps through the energy before the loss."""

    def __init__(self, c: int = 64, steps: int = 8) -> None:
        super().__init__()
        self.steps = steps
        self.e = nn.Sequential(
            nn.Conv2d(1, c, 3, 1, 1),
            nn.SiLU(),
            nn.Conv2d(c, 2 * c, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(2 * c, 4 * c, 4, 2, 1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * c, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        s = torch.rand_like(x)
        for _ in range(self.steps):
            s = s.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.e(s).sum(), s)
            s = s - 10 * g.clamp(-0.03, 0.03) + 0.005 * torch.randn_like(s)
        a, b = self.e(x), self.e(s.detach())
        return a.mean() - b.mean() + 0.1 * (a**2 + b**2).mean()


class DistributionalQ(nn.Module):
    """C51 with a target network: projection onto atoms by index_add."""

    def __init__(self, c: int = 32, actions: int = 18, atoms: int = 51) -> None:
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.online, self.target = self.make(c), self.make(c)
        self.register_buffer("z", torch.linspace(-10, 10, atoms))

    def make(self, c: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(4, c, 8, 4),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 4, 2),
            nn.ReLU(),
            nn.Conv2d(2 * c, 2 * c, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * c * 49, 512),
            nn.ReLU(),
            nn.Linear(512, self.actions * self.atoms),
        )

    def forward(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor) -> Tensor:
        z: Tensor = self.z  # type: ignore[assignment]
        with torch.no_grad():
            p = self.target(s2).view(-1, self.actions, self.atoms).float().softmax(-1)
            best = (p * z).sum(-1).argmax(1)
            p = p[torch.arange(len(p), device=p.device), best]
            b = ((r.float() + 0.99 * z).clamp(-10, 10) + 10) / 20 * (self.atoms - 1)
            lo = b.floor().long().clamp(max=self.atoms - 2)
            m = (
                torch.zeros_like(p)
                .scatter_add_(1, lo, p * (lo + 1 - b))
                .scatter_add_(1, lo + 1, p * (b - lo))
            )
        q = self.online(s).view(-1, self.actions, self.atoms)
        lp = q[torch.arange(len(q), device=q.device), a.flatten()].float().log_softmax(-1)
        return -(m * lp).sum(1).mean()


class LatentImagination(nn.Module):
    """RSSM: posterior and prior states over time, decoded images, KL with free nats."""

    def __init__(self, h: int = 200, z: int = 30, c: int = 32) -> None:
        super().__init__()
        self.h, self.z = h, z
        self.enc = nn.Sequential(
            nn.Conv2d(3, c, 4, 2),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 4, 2),
            nn.ReLU(),
            nn.Conv2d(2 * c, 4 * c, 4, 2),
            nn.ReLU(),
            nn.Conv2d(4 * c, 8 * c, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.cell = nn.GRUCell(h, h)
        self.inp, self.prior = nn.Linear(z + 6, h), nn.Linear(h, 2 * z)
        self.post = nn.Linear(h + 8 * c * 4, 2 * z)
        self.fc = nn.Linear(h + z, 32 * c)
        self.dec = nn.Sequential(
            nn.Unflatten(1, (32 * c, 1, 1)),
            nn.ConvTranspose2d(32 * c, 4 * c, 5, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * c, 2 * c, 5, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * c, c, 6, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 6, 2),
        )

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        B, T = obs.shape[:2]
        e = self.enc(obs.flatten(0, 1)).view(B, T, -1)
        h, z = e.new_zeros(B, self.h), e.new_zeros(B, self.z)
        feats, kl = [], e.new_zeros(())
        for t in range(T):
            h = self.cell(F.elu(self.inp(torch.cat([z, act[:, t]], 1))), h)
            pm, ps = self.prior(h).chunk(2, 1)
            qm, qs = self.post(torch.cat([h, e[:, t]], 1)).chunk(2, 1)
            ps, qs = F.softplus(ps) + 0.1, F.softplus(qs) + 0.1
            z = qm + qs * torch.randn_like(qs)
            kl = kl + (ps.log() - qs.log() + (qs**2 + (qm - pm) ** 2) / (2 * ps**2) - 0.5).sum(
                1
            ).mean().clamp(min=3)
            feats.append(torch.cat([h, z], 1))
        img = self.dec(self.fc(torch.stack(feats, 1).flatten(0, 1)))
        return F.mse_loss(img, obs.flatten(0, 1)) + kl / T


class CoordinateHyper(nn.Module):
    """A hypernetwork that writes a small SIREN for every image (per-sample weights by bmm)."""

    def __init__(self, h: int = 48, pixels: int = 1024) -> None:
        super().__init__()
        self.h, self.n = h, pixels
        self.enc = nn.Sequential(
            nn.Conv2d(3, 64, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(2048, 256),
            nn.ReLU(),
        )
        self.w1, self.w2, self.w3 = (
            nn.Linear(256, 3 * h),
            nn.Linear(256, h * (h + 1)),
            nn.Linear(256, 3 * (h + 1)),
        )

    def forward(self, img: Tensor) -> Tensor:
        B = img.size(0)
        e = self.enc(img)
        xy = torch.rand(B, self.n, 2, device=img.device, dtype=e.dtype) * 2 - 1
        rgb = F.grid_sample(img, xy[:, :, None].to(img.dtype), align_corners=False)[..., 0].transpose(1, 2)
        one = torch.ones_like(xy[..., :1])
        x = torch.sin(30 * torch.bmm(torch.cat([xy, one], -1), self.w1(e).view(B, 3, self.h)))
        x = torch.sin(torch.bmm(torch.cat([x, one], -1), self.w2(e).view(B, self.h + 1, self.h)))
        x = torch.bmm(torch.cat([x, one], -1), self.w3(e).view(B, self.h + 1, 3))
        return F.mse_loss(x, rgb.to(x.dtype))


class EquilibriumNet(nn.Module):
    """Fixed-point iterations without a graph, then one step with it and a Neumann-series hook."""

    def __init__(self, c: int = 64, iters: int = 12, classes: int = 10) -> None:
        super().__init__()
        self.iters = iters
        self.inp = nn.Conv2d(3, c, 3, 1, 1)
        self.a, self.b = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, c, 3, 1, 1)
        self.n1, self.n2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)
        self.fc = nn.Linear(c, classes)

    def f(self, z: Tensor, x: Tensor) -> Tensor:
        return self.n2(F.relu(z + self.b(F.relu(self.n1(self.a(z)))) + x))

    def forward(self, img: Tensor) -> Tensor:
        x = self.inp(img)
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(self.iters):
                z = self.f(z, x)
        for _ in range(3):
            z = self.f(z, x)
        return self.fc(z.mean((2, 3)))


class MultimodalBilinear(nn.Module):
    """Question and image: compact bilinear pooling by FFT over sketches, stacked attention."""

    def __init__(self, vocab: int = 12000, d: int = 512, sketch: int = 4000, answers: int = 1000) -> None:
        super().__init__()
        self.k = sketch
        self.emb = nn.Embedding(vocab, 300)
        self.rnn = nn.LSTM(300, d, batch_first=True)
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 64, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(64, 256, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(256, d, 3, 2, 1),
        )
        for s in ("q", "v"):
            self.register_buffer(f"h_{s}", torch.randint(sketch, (d,)))
            self.register_buffer(f"s_{s}", torch.randint(2, (d,)).float() * 2 - 1)
        self.att = nn.Linear(sketch, 1)
        self.out = nn.Linear(sketch, answers)

    def sketch(self, x: Tensor, s: str) -> Tensor:
        h, sign = getattr(self, f"h_{s}"), getattr(self, f"s_{s}")
        y = x.new_zeros(*x.shape[:-1], self.k, dtype=torch.float32)
        return torch.fft.rfft(y.index_add(-1, h.clamp(0, self.k - 1), x.float() * sign))

    def forward(self, img: Tensor, q: Tensor) -> Tensor:
        _, (h, _) = self.rnn(self.emb(q))
        v = self.cnn(img).flatten(2).transpose(1, 2)
        sq, sv = self.sketch(h[-1], "q"), self.sketch(v, "v")
        m = torch.fft.irfft(sq[:, None] * sv, n=self.k)
        m = F.normalize(torch.sign(m) * (m.abs() + 1e-8).sqrt(), dim=-1).to(self.att.weight.dtype)
        a = self.att(m).softmax(1)
        return self.out((a * m).sum(1))
