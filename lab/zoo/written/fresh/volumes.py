"""Volumes, video, rendering and warping: losses and sampling in `forward`."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class DeepSupervised3d(nn.Module):
    """3-D U-Net with deep supervision and Dice in forward."""

    def __init__(self, c: int = 16, classes: int = 3, depth: int = 4) -> None:
        super().__init__()
        w = [min(c * 2**i, 256) for i in range(depth)]
        self.down = nn.ModuleList(self.block(i, o) for i, o in zip([1, *w], w))
        self.up = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in zip(w[:0:-1], w[-2::-1]))
        self.dec = nn.ModuleList(self.block(2 * b, b) for b in w[-2::-1])
        self.heads = nn.ModuleList(nn.Conv3d(b, classes, 1) for b in w[-2::-1])

    @staticmethod
    def block(i: int, o: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(i, o, 3, 1, 1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(),
            nn.Conv3d(o, o, 3, 1, 1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        skips = []
        for i, d in enumerate(self.down):
            x = d(F.max_pool3d(x, 2) if i else x)
            skips.append(x)
        loss = x.new_zeros(())
        skips.pop()
        for up, dec, head in zip(self.up, self.dec, self.heads):
            x = dec(torch.cat([up(x), skips.pop()], 1))
            logits = F.interpolate(head(x), size=y.shape[-3:], mode="trilinear")
            p = logits.softmax(1)
            t = F.one_hot(y, p.size(1)).movedim(-1, 1).to(p.dtype)
            dice = 1 - (2 * (p * t).sum((2, 3, 4)) / ((p + t).sum((2, 3, 4)) + 1)).mean()
            loss = loss + dice + F.cross_entropy(logits, y)
        return loss


class ModulatedGenerator(nn.Module):
    """StyleGAN2's modulation: one grouped convolution for the whole batch, with a discriminator and R1."""

    def __init__(self, c: int = 64, z: int = 128, size: int = 64) -> None:
        super().__init__()
        self.levels = int(math.log2(size)) - 2
        self.map = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(z, z), nn.LeakyReLU(0.2))])
        self.const = nn.Parameter(torch.randn(1, c, 4, 4))
        self.w = nn.ParameterList(nn.Parameter(torch.randn(c, c, 3, 3)) for _ in range(2 * self.levels))
        self.s = nn.ModuleList(nn.Linear(z, c) for _ in range(2 * self.levels))
        self.rgb = nn.Conv2d(c, 3, 1)
        d: list[nn.Module] = [nn.Conv2d(3, c, 3, 1, 1), nn.LeakyReLU(0.2)]
        for _ in range(self.levels):
            d += [nn.Conv2d(c, c, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)]
        self.d = nn.Sequential(*d, nn.Flatten(), nn.Linear(c * 16, 1))

    def conv(self, x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        B, C, H, W = x.shape
        w = w[None] * (s[:, None, :, None, None] + 1)
        w = w * torch.rsqrt((w**2).sum((2, 3, 4), keepdim=True) + 1e-6)
        y = F.conv2d(x.reshape(1, B * C, H, W), w.reshape(B * C, C, 3, 3).to(x.dtype), padding=1, groups=B)
        return F.leaky_relu(y.view(B, C, H, W) + torch.randn_like(x[:, :1]) * 0.1, 0.2)

    def forward(self, real: Tensor, z: Tensor) -> Tensor:
        w = self.map(z)
        x = self.const.expand(z.size(0), -1, -1, -1)
        for i in range(self.levels):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            for j in (2 * i, 2 * i + 1):
                x = self.conv(x, self.w[j], self.s[j](w))
        fake = torch.tanh(self.rgb(x))
        real = real.requires_grad_()
        score = self.d(real)
        (g,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        return (
            F.softplus(-score).mean()
            + F.softplus(self.d(fake)).mean()
            + 5 * g.float().square().sum((1, 2, 3)).mean()
        )


class SelfSupervisedDepth(nn.Module):
    """Depth and pose, the neighbour frame warped into place, SSIM and edge-aware smoothness."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        w = [c, 2 * c, 4 * c, 8 * c]
        self.enc = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ELU()) for i, o in zip([3, *w], w)
        )
        self.dec = nn.ModuleList(nn.Conv2d(i + j, j, 3, 1, 1) for i, j in zip(w[:0:-1], w[-2::-1]))
        self.disp = nn.ModuleList(nn.Conv2d(j, 1, 3, 1, 1) for j in w[-2::-1])
        self.pose = nn.Sequential(
            nn.Conv2d(6, c, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 5, 4, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * c, 6),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        B, _, H, W = a.shape
        skips = []
        x = a
        for e in self.enc:
            x = e(x)
            skips.append(x)
        skips.pop()
        pose = 0.01 * self.pose(torch.cat([a, b], 1)).float()
        ys, xs = torch.meshgrid(
            torch.linspace(-1, 1, H, device=a.device),
            torch.linspace(-1, 1, W, device=a.device),
            indexing="ij",
        )
        ray = torch.stack([xs, ys, torch.ones_like(xs)], -1)
        loss = a.new_zeros((), dtype=torch.float32)
        for dec, disp in zip(self.dec, self.disp):
            s = skips.pop()
            x = F.elu(dec(torch.cat([F.interpolate(x, size=s.shape[-2:]), s], 1)))
            d = F.interpolate(disp(x).sigmoid().float(), size=(H, W), mode="bilinear")
            p = (
                ray / (d[:, 0, ..., None] + 0.01)
                + torch.cross(pose[:, None, None, :3].expand(B, H, W, 3), ray.expand(B, -1, -1, -1), dim=-1)
                + pose[:, None, None, 3:]
            )
            grid = p[..., :2] / p[..., 2:].clamp(min=1e-3)
            w = F.grid_sample(b.float(), grid, padding_mode="border", align_corners=False)
            t = a.float()
            mx, my = F.avg_pool2d(w, 3, 1), F.avg_pool2d(t, 3, 1)
            sx, sy = F.avg_pool2d(w**2, 3, 1) - mx**2, F.avg_pool2d(t**2, 3, 1) - my**2
            sxy = F.avg_pool2d(w * t, 3, 1) - mx * my
            ssim = ((2 * mx * my + 1e-4) * (2 * sxy + 9e-4)) / ((mx**2 + my**2 + 1e-4) * (sx + sy + 9e-4))
            smooth = (d.diff(dim=3).abs() * torch.exp(-t.diff(dim=3).abs().mean(1, keepdim=True))).mean()
            loss = loss + ((1 - ssim) / 2).clamp(0, 1).mean() + 0.15 * (w - t).abs().mean() + 0.001 * smooth
        return loss


class FlowByLookups(nn.Module):
    """RAFT in small: all-pairs correlation, a pyramid, lookups and a ConvGRU that refines the flow."""

    def __init__(self, c: int = 96, h: int = 64, iters: int = 6, r: int = 3) -> None:
        super().__init__()
        self.h, self.iters, self.r = h, iters, r
        self.f = nn.Sequential(
            nn.Conv2d(3, 48, 7, 2, 3),
            nn.InstanceNorm2d(48),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, 2, 1),
            nn.InstanceNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, c, 3, 2, 1),
        )
        self.ctx = nn.Sequential(nn.Conv2d(3, 48, 7, 4, 3), nn.ReLU(), nn.Conv2d(48, 2 * h, 3, 2, 1))
        k = 3 * (2 * r + 1) ** 2
        self.motion = nn.Conv2d(k + 2, h, 3, 1, 1)
        self.gates, self.cand = nn.Conv2d(3 * h, 2 * h, 3, 1, 1), nn.Conv2d(3 * h, h, 3, 1, 1)
        self.delta = nn.Conv2d(h, 2, 3, 1, 1)

    def forward(self, a: Tensor, b: Tensor, flow: Tensor) -> Tensor:
        fa, fb = self.f(a), self.f(b)
        B, C, H, W = fa.shape
        corr = torch.einsum("bcij,bckl->bijkl", fa, fb).reshape(B * H * W, 1, H, W).float() / math.sqrt(C)
        pyramid = [corr, F.avg_pool2d(corr, 2), F.avg_pool2d(corr, 4)]
        net, inp = self.ctx(a).chunk(2, 1)
        net, inp = net.tanh(), inp.relu()
        base = torch.stack(
            torch.meshgrid(torch.arange(W, device=a.device), torch.arange(H, device=a.device), indexing="xy"),
            -1,
        ).float()
        o = torch.arange(-self.r, self.r + 1, device=a.device).float()
        win = torch.stack(torch.meshgrid(o, o, indexing="xy"), -1)
        cur = torch.zeros(B, 2, H, W, device=a.device)
        loss = cur.sum()
        for n in range(self.iters):
            cur = cur.detach()
            at = (base + cur.permute(0, 2, 3, 1)).reshape(-1, 1, 1, 2)
            looked = []
            for i, c in enumerate(pyramid):
                g = at / 2**i + win
                g = 2 * g / torch.tensor([c.size(3), c.size(2)], device=a.device) - 1
                looked.append(F.grid_sample(c, g, align_corners=False).view(B, H, W, -1))
            x = torch.cat([*looked, cur.permute(0, 2, 3, 1)], -1).permute(0, 3, 1, 2).to(net.dtype)
            m = torch.cat([inp, F.relu(self.motion(x))], 1)
            z, r = self.gates(torch.cat([net, m], 1)).sigmoid().chunk(2, 1)
            net = (1 - z) * net + z * torch.tanh(self.cand(torch.cat([r * net, m], 1)))
            cur = cur + self.delta(net).float()
            up = F.interpolate(cur, size=flow.shape[-2:], mode="bilinear") * 8
            loss = loss + 0.8 ** (self.iters - n - 1) * (up - flow.float()).abs().mean()
        return loss


class VolumeRenderer(nn.Module):
    """Coarse and fine samples along rays, inverse transform sampling, alpha compositing."""

    def __init__(self, d: int = 128, coarse: int = 48, fine: int = 64) -> None:
        super().__init__()
        self.c, self.f = coarse, fine
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(63, d),
                nn.ReLU(),
                nn.Linear(d, d),
                nn.ReLU(),
                nn.Linear(d, d),
                nn.ReLU(),
                nn.Linear(d, 4),
            )
            for _ in range(2)
        )

    def render(self, net: nn.Module, o: Tensor, d: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        p = o[:, None] + d[:, None] * t[..., None]
        k = 2.0 ** torch.arange(10, device=p.device, dtype=p.dtype)
        e = (p[..., None] * k).flatten(2)
        y = net(torch.cat([p, e.sin(), e.cos()], -1)).float()
        a = 1 - torch.exp(-F.relu(y[..., 3]) * F.pad(t.diff(dim=1), (0, 1), value=1.0))
        w = a * F.pad((1 - a + 1e-6)[:, :-1], (1, 0), value=1.0).cumprod(1)
        return (w[..., None] * y[..., :3].sigmoid()).sum(1), w

    def forward(self, o: Tensor, d: Tensor, rgb: Tensor) -> Tensor:
        t = torch.linspace(2, 6, self.c, device=o.device).expand(o.size(0), -1)
        c0, w = self.render(self.nets[0], o, d, t)
        cdf = (w.detach()[:, 1:-1] + 1e-5).cumsum(1)
        cdf = cdf / cdf[:, -1:]
        u = torch.rand(o.size(0), self.f, device=o.device)
        at = torch.searchsorted(cdf.contiguous(), u).clamp(max=cdf.size(1) - 1)
        t2 = torch.cat([t, t[:, 1:-1].gather(1, at)], 1).sort(1).values
        c1, _ = self.render(self.nets[1], o, d, t2)
        return F.mse_loss(c0, rgb.float()) + F.mse_loss(c1, rgb.float())


class FiniteScalarVideo(nn.Module):
    """A causal 3-D convolutional tokenizer with finite scalar quantization and a spectral loss."""

    def __init__(self, c: int = 48) -> None:
        super().__init__()
        self.e1, self.e2, self.e3 = (
            nn.Conv3d(3, c, 3, (1, 2, 2)),
            nn.Conv3d(c, 2 * c, 3, 2),
            nn.Conv3d(2 * c, 6, 1),
        )
        self.d1, self.d2, self.d3 = nn.Conv3d(6, 2 * c, 3), nn.Conv3d(2 * c, c, 3), nn.Conv3d(c, 3, 3)

    @staticmethod
    def causal(f: nn.Module, x: Tensor) -> Tensor:
        return f(F.pad(x, (1, 1, 1, 1, 2, 0)))

    def forward(self, v: Tensor) -> Tensor:
        x = F.silu(self.causal(self.e1, v))
        x = self.e3(F.silu(self.causal(self.e2, x)))
        z = torch.tanh(x) * 3
        z = z + (z.round() - z).detach()
        y = F.silu(self.causal(self.d1, z))
        y = F.interpolate(y, scale_factor=(2, 2, 2))
        y = F.silu(self.causal(self.d2, y))
        y = self.causal(self.d3, F.interpolate(y, scale_factor=(1, 2, 2)))
        a, b = torch.fft.rfft2(y.float()).abs(), torch.fft.rfft2(v.float()).abs()
        return F.l1_loss(y, v) + 0.01 * F.l1_loss(a, b)
