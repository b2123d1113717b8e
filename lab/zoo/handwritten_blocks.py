"""Modern image blocks, patches and dense prediction, written from papers with functional calls."""

from __future__ import annotations

from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PatchTransformer(nn.Module):
    """A vision transformer with patches cut by reshapes and attention as two einsums."""

    def __init__(
        self, side: int, patch: int, width: int, heads: int, layers: int, classes: int = 100
    ) -> None:
        super().__init__()
        self.patch, self.heads = patch, heads
        self.embed = nn.Linear(3 * patch * patch, width)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.where = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.norm1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        p = self.patch
        x = x.reshape(b, c, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, p * p * c)
        x = torch.cat([self.first.expand(b, -1, -1), self.embed(x)], 1) + self.where
        for i, norm in enumerate(self.norm1):
            q, k, v = self.qkv[i](norm(x)).view(b, x.shape[1], 3, self.heads, -1).unbind(2)
            weights = F.softmax(torch.einsum("bnhd,bmhd->bhnm", q, k) * q.shape[-1] ** -0.5, -1)
            x = x + self.out[i](torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2))
            x = x + self.down[i](F.gelu(self.up[i](self.norm2[i](x))))
        out: Tensor = self.head(x[:, 0])
        return out


class MixerByHand(nn.Module):
    """MLP-Mixer: one MLP over patches, one over channels, transposed between."""

    def __init__(self, side: int, patch: int, width: int, layers: int, classes: int = 100) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        tokens = (side // patch) ** 2
        shapes = [(tokens, tokens * 2), (width, width * 4)] * layers
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in shapes)
        self.up = nn.ModuleList(nn.Linear(a, b) for a, b in shapes)
        self.down = nn.ModuleList(nn.Linear(b, a) for a, b in shapes)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        for i, (norm, up, down) in enumerate(zip(self.norms, self.up, self.down)):
            h = norm(x) if i % 2 else norm(x).transpose(1, 2)
            h = F.dropout(down(F.gelu(up(h))), 0.1, self.training)
            x = x + (h if i % 2 else h.transpose(1, 2))
        out: Tensor = self.head(x.mean(1))
        return out


class ConvMixerByHand(nn.Module):
    """ConvMixer: depthwise convolutions with a residual, pointwise ones, GELU and batch norm."""

    def __init__(self, width: int, depth: int, kernel: int = 9, patch: int = 7, classes: int = 100) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, width, patch, patch), nn.BatchNorm2d(width)
        self.deep = nn.ModuleList(
            nn.Conv2d(width, width, kernel, groups=width, padding="same") for _ in range(depth)
        )
        self.wide = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(F.gelu(self.stem(x)))
        for i, (deep, wide) in enumerate(zip(self.deep, self.wide)):
            x = x + self.norms[2 * i](F.gelu(deep(x)))
            x = self.norms[2 * i + 1](F.gelu(wide(x)))
        out: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


class _ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.deep(x).permute(0, 2, 3, 1)
        h = F.layer_norm(h, h.shape[-1:], self.weight, self.bias)
        h = self.scale * self.down(F.gelu(self.up(h)))
        out: Tensor = x + h.permute(0, 3, 1, 2)
        return out


class ConvNextByHand(nn.Module):
    """A ConvNeXt with its layer norms as functional calls and stochastic depth by hand."""

    def __init__(self, widths: List[int], depths: List[int], classes: int = 100) -> None:
        super().__init__()
        steps = [3, *widths]
        self.enter = nn.ModuleList(
            nn.Conv2d(a, b, 2 if i else 4, 2 if i else 4) for i, (a, b) in enumerate(zip(steps, widths))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, a) for a in widths)
        self.stages = nn.ModuleList(
            nn.ModuleList(_ConvNextBlock(w) for _ in range(d)) for w, d in zip(widths, depths)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for enter, norm, stage in zip(self.enter, self.norms, self.stages):
            x = norm(enter(x))
            for block in stage.children():
                keep = torch.empty(x.shape[0], 1, 1, 1, device=x.device, dtype=x.dtype).bernoulli_(0.9)
                x = x + (block(x) - x) * keep / 0.9
        out: Tensor = self.head(x.mean((-2, -1)))
        return out


class MbconvNet(nn.Module):
    """EfficientNet's blocks: expand, depthwise, squeeze and excite, project, add."""

    def __init__(self, plan: List[List[int]], classes: int = 100) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.parts = nn.ModuleList()
        before = 32
        for width, depth, stride, kernel in plan:
            for i in range(depth):
                self.parts.append(self._block(before, width, stride if i == 0 else 1, kernel))
                before = width
        self.head = nn.Linear(before, classes)

    @staticmethod
    def _block(a: int, b: int, stride: int, kernel: int, grow: int = 6) -> nn.ModuleDict:
        c = a * grow
        return nn.ModuleDict(
            {
                "expand": nn.Conv2d(a, c, 1, bias=False),
                "bn1": nn.BatchNorm2d(c),
                "deep": nn.Conv2d(c, c, kernel, stride, kernel // 2, groups=c, bias=False),
                "bn2": nn.BatchNorm2d(c),
                "squeeze": nn.Conv2d(c, max(a // 4, 4), 1),
                "excite": nn.Conv2d(max(a // 4, 4), c, 1),
                "project": nn.Conv2d(c, b, 1, bias=False),
                "bn3": nn.BatchNorm2d(b),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem_norm(self.stem(x)))
        for part in self.parts:
            m = dict(part.named_children())
            h = F.silu(m["bn1"](m["expand"](x)))
            h = F.silu(m["bn2"](m["deep"](h)))
            h = h * torch.sigmoid(m["excite"](F.silu(m["squeeze"](F.adaptive_avg_pool2d(h, 1)))))
            h = m["bn3"](m["project"](h))
            x = x + h if x.shape == h.shape else h
        out: Tensor = self.head(F.dropout(x.mean((2, 3)), 0.2, self.training))
        return out


class DenseNetByHand(nn.Module):
    """DenseNet-BC: every layer reads the concatenation of all before it."""

    def __init__(self, growth: int, layers: List[int], classes: int = 100) -> None:
        super().__init__()
        width = 2 * growth
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.layers, self.transitions = nn.ModuleList(), nn.ModuleList()
        for depth in layers:
            stage = nn.ModuleList()
            for _ in range(depth):
                parts: List[nn.Module] = [nn.BatchNorm2d(width), nn.Conv2d(width, 4 * growth, 1, bias=False)]
                parts += [nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)]
                stage.append(nn.ModuleList(parts))
                width += growth
            self.layers.append(stage)
            self.transitions.append(nn.Conv2d(width, width // 2, 1, bias=False))
            width //= 2
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage, transition in zip(self.layers, self.transitions):
            for layer in stage.children():
                norm1, conv1, norm2, conv2 = layer.children()
                x = torch.cat([x, conv2(F.relu(norm2(conv1(F.relu(norm1(x))))))], 1)
            x = F.avg_pool2d(transition(x), 2)
        out: Tensor = self.head(F.relu(x).mean((2, 3)))
        return out


def _encoder(width: int, levels: int) -> Tuple[nn.ModuleList, List[int]]:
    """Strided pairs of convolutions with batch norm, each level twice as wide."""
    widths = [width * 2**i for i in range(levels)]
    stages = nn.ModuleList()
    for a, b in zip([3, *widths], widths):
        parts: List[nn.Module] = [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        parts += [nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        stages.append(nn.Sequential(*parts))
    return stages, widths


class AtrousSegmenter(nn.Module):
    """A DeepLab-like head: dilated branches and a picture-wide one over a small encoder."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 21) -> None:
        super().__init__()
        self.stages, widths = _encoder(width, levels)
        rates = (1, 6, 12, 18)
        self.branches = nn.ModuleList(
            nn.Conv2d(widths[-1], 256, 1 if r == 1 else 3, padding=0 if r == 1 else r, dilation=r)
            for r in rates
        )
        self.whole, self.join = nn.Conv2d(widths[-1], 256, 1), nn.Conv2d(256 * 5, 256, 1)
        self.low, self.head = nn.Conv2d(widths[1], 48, 1), nn.Conv2d(304, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        side, low = x.shape[-2:], x
        for i, stage in enumerate(self.stages):
            x = stage(x)
            low = x if i == 1 else low
        whole = F.relu(self.whole(F.adaptive_avg_pool2d(x, 1))).expand(-1, -1, *x.shape[-2:])
        x = F.relu(self.join(torch.cat([*[F.relu(b(x)) for b in self.branches], whole], 1)))
        x = F.interpolate(x, size=low.shape[-2:], mode="bilinear", align_corners=False)
        x = self.head(torch.cat([x, F.relu(self.low(low))], 1))
        return F.interpolate(x, size=side, mode="bilinear", align_corners=False)


class PyramidSegmenter(nn.Module):
    """A feature pyramid: lateral convolutions, sums from the top, all levels added up at one size."""

    def __init__(self, width: int = 64, levels: int = 5, channels: int = 128, classes: int = 21) -> None:
        super().__init__()
        self.stages, widths = _encoder(width, levels)
        self.side = nn.ModuleList(nn.Conv2d(w, channels, 1) for w in widths[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in widths[1:])
        self.norm, self.head = nn.GroupNorm(32, channels), nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        side, found = x.shape[-2:], []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        top = self.side[-1](found[-1])
        total = torch.zeros_like(self.side[0](found[1]))
        for i in range(len(self.side) - 1, -1, -1):
            if i < len(self.side) - 1:
                top = F.interpolate(top, scale_factor=2.0, mode="nearest") + self.side[i](found[i + 1])
            total = total + F.interpolate(self.smooth[i](top), size=total.shape[-2:], mode="bilinear")
        return F.interpolate(self.head(F.relu(self.norm(total))), size=side, mode="bilinear")


class VNet(nn.Module):
    """A V-Net of volumes: residual stages, strided convolutions, leaky ReLUs."""

    def __init__(self, width: int = 16, levels: int = 3, classes: int = 4) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(levels + 1)]
        self.first = nn.Conv3d(1, width, 5, padding=2)
        self.mix = nn.ModuleList(nn.Conv3d(w, w, 5, padding=2) for w in widths)
        self.down = nn.ModuleList(nn.Conv3d(a, b, 2, 2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(nn.Conv3d(2 * w, w, 3, padding=1) for w in widths[:-1])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for i, mix in enumerate(self.mix):
            x = x + F.leaky_relu(F.instance_norm(mix(x)))
            if i < len(self.down):
                kept.append(x)
                x = F.leaky_relu(self.down[i](x))
        for i in reversed(range(len(self.up))):
            x = F.leaky_relu(self.join[i](torch.cat([self.up[i](x), kept[i]], 1)))
        out: Tensor = self.head(x)
        return out
