"""U-Nets, diffusion networks, super-resolution, autoencoders and small image networks, by hand."""

from __future__ import annotations

import math
from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _double(dims: int, a: int, b: int) -> nn.Sequential:
    conv, norm = (nn.Conv3d, nn.BatchNorm3d) if dims == 3 else (nn.Conv2d, nn.BatchNorm2d)
    parts: List[nn.Module] = [conv(a, b, 3, padding=1), norm(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, conv(b, b, 3, padding=1), norm(b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """The usual encoder and decoder with skip connections, in two or three dimensions."""

    def __init__(self, channels: int, classes: int, width: int, depth: int = 4, dims: int = 2) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.pool = nn.MaxPool3d(2) if dims == 3 else nn.MaxPool2d(2)
        up = nn.ConvTranspose3d if dims == 3 else nn.ConvTranspose2d
        self.down = nn.ModuleList(_double(dims, a, b) for a, b in zip([channels, *widths], widths))
        self.ups = nn.ModuleList(up(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.merge = nn.ModuleList(_double(dims, 2 * a, a) for a in widths[-2::-1])
        self.head = (nn.Conv3d if dims == 3 else nn.Conv2d)(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: List[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.ups, self.merge):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        out: Tensor = self.head(x)
        return out


class _TimeBlock(nn.Module):
    def __init__(self, a: int, b: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
        self.time = nn.Linear(time, b)
        self.norm2, self.conv2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.skip: nn.Module = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(self.drop(F.silu(self.norm2(h))))
        return out


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.proj = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        a = F.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        out: Tensor = x + self.proj(a.transpose(-1, -2).reshape(b, c, h, w))
        return out


def _run(parts: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """A level's convolution, or its residual block and attention."""
    first, *rest = parts.children()
    out: Tensor = rest[0](first(x, t)) if rest else first(x)
    return out


class DiffusionUNet(nn.Module):
    """A noise predictor: residual blocks with a time embedding, attention at low resolutions."""

    def __init__(
        self,
        channels: int,
        width: int,
        multipliers: Tuple[int, ...] = (1, 2, 4),
        blocks: int = 2,
        attend_from: int = 1,
    ) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, current = [width], width
        for level, factor in enumerate(multipliers):
            for _ in range(blocks):
                self.down.append(
                    nn.ModuleList(
                        [
                            _TimeBlock(current, width * factor, time),
                            self._attend(width * factor, level >= attend_from),
                        ]
                    )
                )
                current = width * factor
                kept.append(current)
            if level < len(multipliers) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(current, current, 3, 2, 1)]))
                kept.append(current)
        self.middle = nn.ModuleList(
            [_TimeBlock(current, current, time), _Attention(current), _TimeBlock(current, current, time)]
        )
        for level, factor in reversed(list(enumerate(multipliers))):
            for _ in range(blocks + 1):
                self.up.append(
                    nn.ModuleList(
                        [
                            _TimeBlock(current + kept.pop(), width * factor, time),
                            self._attend(width * factor, level >= attend_from),
                        ]
                    )
                )
                current = width * factor
            if level:
                self.up.append(nn.ModuleList([nn.Conv2d(current, current, 3, padding=1)]))
        self.norm, self.last = nn.GroupNorm(8, current), nn.Conv2d(current, channels, 3, padding=1)

    @staticmethod
    def _attend(width: int, wanted: bool) -> nn.Module:
        return _Attention(width) if wanted else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = step[:, None] * rates[None]
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x = self.first(x)
        kept = [x]
        for parts in self.down:
            x = _run(parts, x, t)
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, t)), t)
        for parts in self.up:
            grows = len(list(parts.children())) == 1
            x = _run(parts, F.interpolate(x, scale_factor=2.0) if grows else torch.cat([x, kept.pop()], 1), t)
        out: Tensor = self.last(F.silu(self.norm(x)))
        return out


class _DitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        b, n, width = x.shape
        s1, g1, h1, s2, g2, h2 = (p[:, None] for p in self.modulate(c).chunk(6, 1))
        q, k, v = (
            t.view(b, n, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x) * (1 + g1) + s1).chunk(3, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
        x = x + h1 * self.proj(a)
        out: Tensor = x + h2 * self.mlp(self.norm2(x) * (1 + g2) + s2)
        return out


class Dit(nn.Module):
    """A diffusion transformer over latent patches."""

    def __init__(self, channels: int, width: int, heads: int, layers: int, patch: int = 2) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Conv2d(channels, width, patch, patch)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_DitBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.last = nn.ConvTranspose2d(width, channels, patch, patch)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        angles = step[:, None] * rates[None]
        c = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x = self.first(x)
        b, w, height, width = x.shape
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, c)
        out: Tensor = self.last(self.norm(x).transpose(1, 2).reshape(b, w, height, width))
        return out


class SuperResolution(nn.Module):
    """Residual blocks without pooling and a pixel shuffle: four times the side."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.up = nn.Sequential(nn.Conv2d(width, 48, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.body:
            x = x + 0.1 * block(x)
        out: Tensor = self.up(x)
        return out


class ConvVae(nn.Module):
    """A convolutional variational autoencoder."""

    def __init__(self, channels: int, width: int, levels: int, latent: int) -> None:
        super().__init__()
        widths = [channels, *[width * 2**i for i in range(levels)]]
        down = [
            nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in zip(widths, widths[1:])
        ]
        self.encoder = nn.Sequential(*down, nn.Conv2d(widths[-1], 2 * latent, 1))
        up: List[nn.Module] = [nn.Conv2d(latent, widths[-1], 1)]
        for a, b in zip(widths[:1:-1], widths[-2:0:-1]):
            up += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.decoder = nn.Sequential(*up, nn.ConvTranspose2d(widths[1], channels, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread)), mean, spread


def lenet(channels: int = 1, classes: int = 10) -> nn.Module:
    """The classic small network for digits, with a pooled head so that any side fits."""
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(5),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def plain_cnn(widths: List[int], classes: int = 10, channels: int = 3) -> nn.Module:
    """A tutorial's network: convolution, ReLU and pooling, then two linear layers."""
    parts: List[nn.Module] = []
    for a, b in zip([channels, *widths], widths):
        parts += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * widths[-1], 512),
        nn.ReLU(),
        nn.Dropout(0.5),
    ]
    return nn.Sequential(*parts, nn.Linear(512, classes))


class CifarResNet(nn.Module):
    """ResNet for small images: no stem pooling, three stages."""

    def __init__(self, blocks: int, width: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks, self.skips = nn.ModuleList(), nn.ModuleList()
        current = width
        for stage in range(3):
            for i in range(blocks):
                wide, stride = width * 2**stage, 2 if stage and i == 0 else 1
                self.blocks.append(
                    nn.Sequential(
                        nn.Conv2d(current, wide, 3, stride, 1, bias=False),
                        nn.BatchNorm2d(wide),
                        nn.ReLU(),
                        nn.Conv2d(wide, wide, 3, 1, 1, bias=False),
                        nn.BatchNorm2d(wide),
                    )
                )
                same = current == wide and stride == 1
                self.skips.append(nn.Identity() if same else nn.Conv2d(current, wide, 1, stride, bias=False))
                current = wide
        self.head = nn.Linear(current, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block, skip in zip(self.blocks, self.skips):
            x = torch.relu(block(x) + skip(x))
        out: Tensor = self.head(x.mean((2, 3)))
        return out
