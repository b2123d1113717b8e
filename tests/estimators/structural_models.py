"""Small networks with the connections that a summary does not show; their summaries are in data/structural.

torchinfo 1.8.0 wrote the texts with depth=20, with all columns (-full) and its default ones (-plain).
"""

from __future__ import annotations

from typing import Callable, Dict, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True)),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).flatten(1))


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.Sequential(*(Bottleneck(64 if i == 0 else 256, 64, 256) for i in range(4)))
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Excite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)
        self.act, self.gate = nn.SiLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class InvertedResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.expand, self.bn1 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.bn2, self.act1, self.act2 = nn.BatchNorm2d(wide), nn.SiLU(), nn.SiLU()
        self.se = Excite(wide)
        self.project, self.bn3 = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.expand(x)))
        out = self.se(self.act2(self.bn2(self.depthwise(out))))
        return self.bn3(self.project(out)) + x


class Inverted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(InvertedResidual(32) for _ in range(4)))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.middle = nn.Conv2d(64, 128, 3, padding=1)
        self.rise2, self.rise1 = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
        self.up2, self.up1 = nn.Conv2d(128, 64, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = self.act(self.down1(x))
        second = self.act(self.down2(self.pool1(first)))
        out = self.act(self.middle(self.pool2(second)))
        out = self.act(self.up2(torch.cat([self.rise2(out), second], 1)))
        out = self.act(self.up1(torch.cat([self.rise1(out), first], 1)))
        return self.head(out.mean((2, 3)))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Linear(784, 4096),
                nn.ReLU(),
                nn.Linear(4096, 4096),
                nn.GELU(),
                nn.Linear(4096, 4096),
                nn.Tanh(),
            ),
            nn.Linear(4096, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.act, self.down = nn.SiLU(), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return functional.layer_norm(self.down(self.act(self.gate(y)) * self.up(y)), (x.shape[-1],)) + x


class GatedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.blocks = nn.Sequential(*(Gated(256, 1024) for _ in range(4)))
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.first(x)).mean(1))


MODELS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "small-cnn": (SmallCnn, (256, 3, 32, 32)),
    "residual": (Residual, (32, 3, 32, 32)),
    "inverted": (Inverted, (32, 3, 64, 64)),
    "unet": (UNet, (16, 3, 64, 64)),
    "mlp": (Mlp, (512, 784)),
    "gated": (GatedLayers, (16, 64, 64)),
}
