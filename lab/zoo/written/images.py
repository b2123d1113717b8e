"""Pictures: own blocks with gates, concatenations, unfolding and attention over maps."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class CBAM(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.conv = (
            nn.Conv2d(c, c // 8, 1),
            nn.Conv2d(c // 8, c, 1),
            nn.Conv2d(2, 1, 7, padding=3),
        )

    def forward(self, x: Tensor) -> Tensor:
        avg = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        mx = self.fc2(F.relu(self.fc1(F.adaptive_max_pool2d(x, 1))))
        x = torch.sigmoid(avg + mx) * x
        s = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return x * torch.sigmoid(self.conv(s))


class CbamNet(nn.Module):
    def __init__(self, c: int = 48, n: int = 4, num_classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 1, 1)
        self.convs = nn.ModuleList(nn.Conv2d(c, c, 3, 1, 1) for _ in range(n))
        self.bns = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(n))
        self.att = nn.ModuleList(CBAM(c) for _ in range(n))
        self.fc = nn.Linear(c, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for i, (c, b, a) in enumerate(zip(self.convs, self.bns, self.att)):
            x = x + a(F.relu(b(c(x))))
            if i % 2:
                x = F.avg_pool2d(x, 2)
        return self.fc(x.mean([2, 3]))


class DenseBlock(nn.Module):
    def __init__(self, c: int, growth: int, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(c + i * growth, growth, 3, padding=1, bias=False) for i in range(n)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c + i * growth) for i in range(n))

    def forward(self, x: Tensor) -> Tensor:
        feats = [x]
        for conv, bn in zip(self.layers, self.norms):
            feats.append(conv(F.relu(bn(torch.cat(feats, 1)))))
        return torch.cat(feats, 1)


class TiramisuLike(nn.Module):
    def __init__(self, growth: int = 12, n: int = 4, classes: int = 12) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 3, 1, 1)
        c1, c2 = 48 + n * growth, 48 + 2 * n * growth
        self.d1, self.d2, self.mid = (
            DenseBlock(48, growth, n),
            DenseBlock(c1, growth, n),
            DenseBlock(c2, growth, n),
        )
        cm = c2 + n * growth
        self.u2, self.u1 = nn.ConvTranspose2d(cm, c2, 3, 2, 1, 1), nn.ConvTranspose2d(2 * c2, c1, 3, 2, 1, 1)
        self.final = nn.Conv2d(2 * c1, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        s1 = self.d1(self.first(x))
        s2 = self.d2(F.max_pool2d(s1, 2))
        m = self.mid(F.max_pool2d(s2, 2))
        y = torch.cat([self.u2(m), s2], 1)
        return self.final(torch.cat([self.u1(y), s1], 1))


class DoubleConv(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.gn = nn.GroupNorm(8, b)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv2(F.silu(self.gn(self.conv1(x)))))


class AttentionUNet(nn.Module):
    def __init__(self, c: int = 32, depth: int = 3, out: int = 2) -> None:
        super().__init__()
        w = [c * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *w], w))
        self.up = nn.ModuleList(DoubleConv(b + a, a) for a, b in zip(w, w[1:]))
        self.g = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in zip(w, w[1:]))
        self.x = nn.ModuleList(nn.Conv2d(a, a, 1) for a in w[:-1])
        self.psi = nn.ModuleList(nn.Conv2d(a, 1, 1) for a in w[:-1])
        self.head = nn.Conv2d(c, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for d in self.down:
            x = d(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = skips.pop()
        for i in reversed(range(len(self.up))):
            s = skips.pop()
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            gate = torch.sigmoid(self.psi[i](F.relu(self.g[i](x) + self.x[i](s))))
            x = self.up[i](torch.cat([x, s * gate], 1))
        return self.head(x)


class UNetPlusPlus(nn.Module):
    def __init__(self, c: int = 24, out: int = 3) -> None:
        super().__init__()
        self.c = nn.ModuleDict()
        for j in range(4):
            for i in range(4 - j):
                cin = (3 if i == 0 else c * 2 ** (i - 1)) if j == 0 else c * 2**i * j + c * 2 ** (i + 1)
                self.c[f"x{i}{j}"] = DoubleConv(cin, c * 2**i)
        self.heads = nn.ModuleList(nn.Conv2d(c, out, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        f = {}
        for i in range(4):
            f[i, 0] = self.c[f"x{i}0"](x if i == 0 else F.max_pool2d(f[i - 1, 0], 2))
        for j in range(1, 4):
            for i in range(4 - j):
                up = F.interpolate(f[i + 1, j - 1], scale_factor=2)
                f[i, j] = self.c[f"x{i}{j}"](torch.cat([*[f[i, k] for k in range(j)], up], 1))
        return torch.stack([h(f[0, j + 1]) for j, h in enumerate(self.heads)]).mean(0)


class InvertedResidualHS(nn.Module):
    def __init__(self, a: int, b: int, stride: int, expand: int) -> None:
        super().__init__()
        h = a * expand
        self.pw, self.dw, self.out = (
            nn.Conv2d(a, h, 1, bias=False),
            nn.Conv2d(h, h, 5, stride, 2, groups=h, bias=False),
            nn.Conv2d(h, b, 1, bias=False),
        )
        self.b1, self.b2, self.b3 = nn.BatchNorm2d(h), nn.BatchNorm2d(h), nn.BatchNorm2d(b)
        self.se1, self.se2, self.same = (
            nn.Conv2d(h, h // 4, 1),
            nn.Conv2d(h // 4, h, 1),
            stride == 1 and a == b,
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.b2(self.dw(F.hardswish(self.b1(self.pw(x))))))
        y = y * F.hardsigmoid(self.se2(F.relu(self.se1(y.mean((2, 3), keepdim=True)))))
        y = self.b3(self.out(y))
        return x + y if self.same else y


class PhoneNet(nn.Module):
    def __init__(self, classes: int = 200, wide: int = 1) -> None:
        super().__init__()
        plan = [
            (16, 24, 2, 4),
            (24, 24, 1, 4),
            (24, 40, 2, 6),
            (40, 40, 1, 6),
            (40, 96, 2, 6),
            (96, 96, 1, 6),
        ]
        self.stem = nn.Conv2d(3, 16 * wide, 3, 2, 1)
        self.body = nn.ModuleList(InvertedResidualHS(a * wide, b * wide, s, e) for a, b, s, e in plan)
        self.fc = nn.Linear(96 * wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        for b in self.body:
            x = b(x)
        return self.fc(F.dropout(x.mean((2, 3)), 0.2, self.training))


class InvolutionNet(nn.Module):
    """Kernels made from the pixels, applied to unfolded patches."""

    def __init__(self, c: int = 32, k: int = 5, g: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.k, self.g = k, g
        self.stem, self.reduce, self.span = (
            nn.Conv2d(3, c, 3, 2, 1),
            nn.Conv2d(c, c // 4, 1),
            nn.Conv2d(c // 4, k * k * g, 1),
        )
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        B, C, H, W = x.shape
        w = self.span(F.relu(self.reduce(x))).view(B, self.g, 1, self.k**2, H, W)
        u = F.unfold(x, self.k, padding=self.k // 2).view(B, self.g, C // self.g, self.k**2, H, W)
        return self.fc((w * u).sum(3).reshape(B, C, H, W).mean((2, 3)))


class DynamicConvNet(nn.Module):
    """A mixture of kernels chosen per sample, run as one grouped convolution."""

    def __init__(self, c: int = 48, kernels: int = 4, n: int = 3, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.bank = nn.ParameterList(nn.Parameter(torch.randn(kernels, c, c, 3, 3) * 0.02) for _ in range(n))
        self.route = nn.ModuleList(nn.Linear(c, kernels) for _ in range(n))
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        B, C, H, W = x.shape
        for bank, route in zip(self.bank, self.route):
            a = F.softmax(route(x.mean((2, 3))) / 30, -1)
            w = torch.einsum("bk,koihw->boihw", a.to(bank.dtype), bank).reshape(B * C, C, 3, 3)
            x = F.relu(F.conv2d(x.reshape(1, B * C, H, W), w, padding=1, groups=B).view(B, C, H, W) + x)
        return self.fc(x.mean((2, 3)))


class MixerToken(nn.Module):
    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.t1, self.t2 = (
            nn.Parameter(torch.randn(n, 2 * n) * 0.02),
            nn.Parameter(torch.randn(2 * n, n) * 0.02),
        )
        self.c1, self.c2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bnd,nm->bmd", F.layer_norm(x, x.shape[-1:]).to(x.dtype), self.t1)
        x = x + torch.einsum("bmd,mn->bnd", F.gelu(y), self.t2)
        return x + self.c2(F.gelu(self.c1(F.layer_norm(x, x.shape[-1:]).to(x.dtype))))


class MixerEinsum(nn.Module):
    def __init__(self, size: int = 96, patch: int = 8, d: int = 192, n: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.p, tokens = patch, (size // patch) ** 2
        self.emb = nn.Linear(3 * patch * patch, d)
        self.layers = nn.ModuleList(MixerToken(tokens, d) for _ in range(n))
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.emb(F.unfold(x, self.p, stride=self.p).transpose(1, 2))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class GlobalFilterNet(nn.Module):
    def __init__(self, size: int = 96, d: int = 96, n: int = 5, classes: int = 100) -> None:
        super().__init__()
        s = size // 8
        self.stem = nn.Conv2d(3, d, 8, 8)
        self.filters = nn.ParameterList(
            nn.Parameter(torch.randn(d, s, s // 2 + 1, 2) * 0.02) for _ in range(n)
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Conv2d(d, 4 * d, 1), nn.GELU(), nn.Conv2d(4 * d, d, 1)) for _ in range(n)
        )
        self.fc = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for w, mlp in zip(self.filters, self.mlp):
            f = torch.fft.rfft2(x.float(), norm="ortho") * torch.view_as_complex(w.float().contiguous())
            x = x + mlp(torch.fft.irfft2(f, s=x.shape[-2:], norm="ortho").to(x.dtype))
        return self.fc(x.mean((2, 3)))


class CapsuleNet(nn.Module):
    def __init__(self, classes: int = 10, iters: int = 3) -> None:
        super().__init__()
        self.iters = iters
        self.conv1, self.primary = nn.Conv2d(3, 128, 9), nn.Conv2d(128, 64, 9, 2)
        self.W = nn.Parameter(torch.randn(1, 512, classes, 16, 8) * 0.05)

    def squash(self, s: Tensor) -> Tensor:
        n = (s * s).sum(-1, keepdim=True)
        return n / (1 + n) * s / torch.sqrt(n + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(F.relu(self.conv1(x)))
        u = self.squash(x.view(x.size(0), -1, 8))
        u_hat = (self.W @ u[:, : self.W.size(1), None, :, None].to(self.W.dtype)).squeeze(-1)
        b = torch.zeros_like(u_hat[..., 0])
        v = u_hat[:, 0]
        for _ in range(self.iters):
            c = F.softmax(b, 2)
            v = self.squash((c.unsqueeze(-1) * u_hat).sum(1))
            b = b + (u_hat * v.unsqueeze(1)).sum(-1)
        return (v * v).sum(-1)


class HaarNet(nn.Module):
    """Wavelet pooling instead of strides."""

    def __init__(self, c: int = 16, n: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(4 * c * 2**i, c * 2 ** (i + 1), 3, padding=1) for i in range(n))
        self.fc = nn.Linear(c * 2**n, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for conv in self.convs:
            a, b, c, d = x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]
            x = torch.cat([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], 1) / 2
            x = F.relu(conv(x))
        return self.fc(x.flatten(2).max(-1)[0])


class SpatialTransformerNet(nn.Module):
    def __init__(self, c: int = 32, classes: int = 43) -> None:
        super().__init__()
        self.loc = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2), nn.ReLU(), nn.Conv2d(16, 24, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.theta = nn.Linear(24 * 16, 6)
        self.conv1, self.conv2, self.fc = (
            nn.Conv2d(3, c, 5, padding=2),
            nn.Conv2d(c, 2 * c, 5, padding=2),
            nn.Linear(2 * c, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        t = self.theta(self.loc(x).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(t.float(), list(x.shape), align_corners=False).to(x.dtype)
        x = F.grid_sample(x, grid, align_corners=False)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc(F.relu(self.conv2(x)).mean((2, 3)))
