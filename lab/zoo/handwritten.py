"""Image networks as people write them from papers: plain modules, functional calls in forward."""

from __future__ import annotations

from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SrganGenerator(nn.Module):
    """SRGAN's generator: residual blocks with batch norm, a long skip, pixel shuffles."""

    def __init__(self, width: int = 64, blocks: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 9, padding=4)
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * blocks))
        self.slopes = nn.Parameter(torch.full((blocks + 1, width), 0.25))
        self.middle, self.middle_norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.ups = nn.ModuleList(nn.Conv2d(width, 4 * width, 3, padding=1) for _ in range(2))
        self.last = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        start = F.prelu(self.first(x), self.slopes[-1])
        x = start
        for i in range(0, len(self.convs), 2):
            h = F.prelu(self.norms[i](self.convs[i](x)), self.slopes[i // 2])
            x = x + self.norms[i + 1](self.convs[i + 1](h))
        x = start + self.middle_norm(self.middle(x))
        for up in self.ups:
            x = F.leaky_relu(F.pixel_shuffle(up(x), 2), 0.2)
        return torch.tanh(self.last(x))


class Pix2PixUNet(nn.Module):
    """pix2pix's generator: strided convolutions down, transposed ones up, skips by concatenation."""

    def __init__(self, width: int = 64, levels: int = 7, channels: int = 3) -> None:
        super().__init__()
        widths = [min(width * 2**i, 8 * width) for i in range(levels)]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in zip([channels, *widths], widths))
        self.down_norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths)
        outs = [*widths[-2::-1], channels]
        ins = [widths[-1], *[2 * w for w in widths[-2::-1]]]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(ins, outs))
        self.up_norms = nn.ModuleList(nn.BatchNorm2d(b) for b in outs[:-1])

    def forward(self, x: Tensor) -> Tensor:
        kept: List[Tensor] = []
        for i, conv in enumerate(self.down):
            x = conv(x) if i == 0 else self.down_norms[i](conv(F.leaky_relu(x, 0.2)))
            kept.append(x)
        x = kept.pop()
        for i, up in enumerate(self.up):
            x = up(F.relu(x))
            if i < len(self.up_norms):
                x = F.dropout(self.up_norms[i](x), 0.5, self.training and i < 3)
                x = torch.cat([x, kept.pop()], 1)
        return torch.tanh(x)


class DcganDiscriminator(nn.Module):
    """DCGAN's discriminator: strided convolutions and leaky ReLUs, no pooling."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [3, *[width * 2**i for i in range(levels)]]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1, bias=False) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[2:])
        self.last = nn.Conv2d(widths[-1], classes, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.convs[0](x), 0.2)
        for conv, norm in zip(self.convs[1:], self.norms):
            x = F.leaky_relu(norm(conv(x)), 0.2, inplace=True)
        out: Tensor = self.last(x).mean((2, 3))
        return out


class _PreActivation(nn.Module):
    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 or a != b else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        skip = x if self.short is None else self.short(h)
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(h)))) + skip
        return out


class ResidualAttentionNet(nn.Module):
    """Residual attention: a trunk, and a mask from a small bottom-up top-down branch that scales it."""

    def __init__(self, width: int = 64, stages: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        widths = [width * 2**i for i in range(stages + 1)]
        self.enter = nn.ModuleList(_PreActivation(a, b, 2) for a, b in zip(widths, widths[1:]))
        self.trunk = nn.ModuleList(
            nn.Sequential(_PreActivation(b, b), _PreActivation(b, b)) for b in widths[1:]
        )
        self.low = nn.ModuleList(_PreActivation(b, b) for b in widths[1:])
        self.gate = nn.ModuleList(nn.Conv2d(b, b, 1) for b in widths[1:])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for enter, trunk, low, gate in zip(self.enter, self.trunk, self.low, self.gate):
            x = enter(x)
            mask = low(F.max_pool2d(x, 3, 2, 1))
            mask = F.interpolate(mask, size=x.shape[-2:], mode="bilinear", align_corners=False)
            x = (1 + torch.sigmoid(gate(mask))) * trunk(x)
        out: Tensor = self.head(F.adaptive_avg_pool2d(F.relu(x), 1).flatten(1))
        return out


class SeCifarResNet(nn.Module):
    """A ResNet for small pictures with squeeze and excitation in each block."""

    def __init__(self, width: int = 32, blocks: int = 3, classes: int = 100) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        plan = [(width * 2**s, 2 if s and not i else 1) for s in range(3) for i in range(blocks)]
        before = [width, *[w for w, _ in plan]]
        self.blocks = nn.ModuleList(_PreActivation(a, b, s) for a, (b, s) in zip(before, plan))
        self.squeeze = nn.ModuleList(nn.Linear(b, b // 16) for b, _ in plan)
        self.excite = nn.ModuleList(nn.Linear(b // 16, b) for b, _ in plan)
        self.head = nn.Linear(plan[-1][0], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for block, squeeze, excite in zip(self.blocks, self.squeeze, self.excite):
            x = block(x)
            s = torch.sigmoid(excite(F.relu(squeeze(x.mean((2, 3))))))
            x = x * s.view(*s.shape, 1, 1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class WideShallowCnn(nn.Module):
    """Two very wide convolutions and a large fully connected layer."""

    def __init__(self, width: int = 512, hidden: int = 2048, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, width, 5, padding=2), nn.Conv2d(width, width, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(width * 16, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_max_pool2d(F.relu(self.conv2(x)), 4)
        x = F.dropout(F.relu(self.fc1(x.view(x.size(0), -1))), training=self.training)
        out: Tensor = self.fc2(x)
        return out


class DenseAutoencoder(nn.Module):
    """A fully connected autoencoder of flattened pictures."""

    def __init__(self, pixels: int, widths: List[int]) -> None:
        super().__init__()
        steps = [pixels, *widths]
        self.encode = nn.ModuleList(nn.Linear(a, b) for a, b in zip(steps, steps[1:]))
        self.decode = nn.ModuleList(nn.Linear(b, a) for a, b in reversed(list(zip(steps, steps[1:]))))

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for layer in self.encode:
            h = torch.relu(layer(h))
        for layer in self.decode[:-1]:
            h = torch.relu(layer(h))
        out: Tensor = torch.sigmoid(self.decode[-1](h)).view_as(x)
        return out


class GumbelVae(nn.Module):
    """A VAE with a Gaussian code and a Gumbel-softmax code beside it."""

    def __init__(self, width: int = 64, latent: int = 64, kinds: int = 512, channels: int = 3) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 4, 2, 1)
            for a, b in zip([channels, width, 2 * width], [width, 2 * width, 4 * width])
        )
        self.mean, self.spread = nn.Conv2d(4 * width, latent, 1), nn.Conv2d(4 * width, latent, 1)
        self.kind, self.book = nn.Conv2d(4 * width, kinds, 1), nn.Conv2d(kinds, latent, 1, bias=False)
        self.join = nn.Conv2d(2 * latent, 4 * width, 3, padding=1)
        self.ups = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1)
            for a, b in zip([4 * width, 2 * width, width], [2 * width, width, channels])
        )

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        for conv in self.convs:
            x = F.elu(conv(x))
        mean, spread = self.mean(x), self.spread(x)
        code = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        soft = self.book(F.gumbel_softmax(self.kind(x), tau=0.9, dim=1))
        x = F.elu(self.join(torch.cat([code, soft], 1)))
        for i, up in enumerate(self.ups):
            x = up(F.interpolate(x if i == 0 else F.elu(x), scale_factor=2))
        return torch.sigmoid(x), mean, spread


class Siamese(nn.Module):
    """Two pictures through one encoder, the difference of their codes classified."""

    def __init__(self, width: int = 64, code: int = 4096, classes: int = 2) -> None:
        super().__init__()
        plan = [(3, width, 10), (width, 2 * width, 7), (2 * width, 2 * width, 4), (2 * width, 4 * width, 4)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k) for a, b, k in plan)
        self.fc, self.head = nn.Linear(4 * width * 36, code), nn.Linear(code, classes)

    def encode(self, x: Tensor) -> Tensor:
        """The code of one picture."""
        for conv in self.convs[:-1]:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.convs[-1](x)), 6)
        return torch.sigmoid(self.fc(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        out: Tensor = self.head(torch.abs(self.encode(left) - self.encode(right)))
        return out


class InceptionNet(nn.Module):
    """Inception blocks: four branches of different kernels, concatenated."""

    def __init__(self, width: int = 32, blocks: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4 * width, 7, 2, 3)
        self.one = nn.ModuleList(nn.Conv2d(4 * width, width, 1) for _ in range(blocks))
        self.three = nn.ModuleList(nn.Conv2d(4 * width, width, 3, padding=1) for _ in range(blocks))
        self.five = nn.ModuleList(nn.Conv2d(4 * width, width, 5, padding=2) for _ in range(blocks))
        self.pool = nn.ModuleList(nn.Conv2d(4 * width, width, 1) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 * width) for _ in range(blocks))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        for i, norm in enumerate(self.norms):
            pooled = self.pool[i](F.avg_pool2d(x, 3, 1, 1))
            x = F.relu(norm(torch.cat([self.one[i](x), self.three[i](x), self.five[i](x), pooled], 1)))
            if i == len(self.norms) // 2:
                x = F.max_pool2d(x, 3, 2, 1)
        out: Tensor = self.head(F.dropout(x.mean((2, 3)), 0.4, self.training))
        return out
