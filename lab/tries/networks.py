"""Training loops under `torch.backends.cudnn.benchmark`, one a kind of network.

    python lab/tries/networks.py vocoder

Random data; layers and sizes as such networks have them. Needs PyTorch alone.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import weight_norm

Step = Callable[[], Any]
STEPS = 4


def _conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, **more: Any) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, more.pop("padding", kernel // 2), bias=False, **more)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Sum(nn.Module):
    """A residual connection."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.shortcut(x) + self.body(x)
        return y


def _bottleneck(inputs: int, width: int, stride: int, dilation: int = 1) -> nn.Module:
    body = nn.Sequential(
        _conv_norm(inputs, width, 1),
        _conv_norm(width, width, 3, stride, padding=dilation, dilation=dilation),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm2d(4 * width),
    )
    plain = inputs == 4 * width and stride == 1
    shortcut = nn.Identity() if plain else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
    return nn.Sequential(_Sum(body, shortcut), nn.ReLU(inplace=True))


def _resnet50(dilations: Sequence[int] = (1, 1, 1, 1)) -> nn.Sequential:
    layers: List[nn.Module] = [_conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (count, dilation) in enumerate(zip((3, 4, 6, 3), dilations)):
        for block in range(count):
            stride = 2 if stage and not block and dilation == 1 else 1
            layers.append(_bottleneck(inputs, 64 << stage, stride, dilation))
            inputs = 256 << stage
    return nn.Sequential(*layers)


def _classifier(body: nn.Module, width: int, classes: int = 1000) -> nn.Module:
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _supervised(
    model: nn.Module,
    batch: Tuple[int, ...],
    target: Tuple[int, ...],
    half: Any = None,
    channels_last: bool = False,
    loss: Callable[[Any, Any], Any] = F.cross_entropy,
    classes: int = 1000,
) -> Step:
    model = model.cuda()
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=half == torch.float16)

    def step() -> Any:
        x = torch.randn(batch, device="cuda")
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        if loss is F.cross_entropy:
            y = torch.randint(0, classes, target, device="cuda")
        else:
            y = torch.randn(target, device="cuda")
        with torch.autocast("cuda", half, enabled=half is not None):
            error = loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(error).backward()
        scaler.step(optimizer)
        scaler.update()
        return error

    return step


def resnet() -> Step:
    """ResNet-50, 224 pixels, single precision."""
    return _supervised(_classifier(_resnet50(), 2048), (64, 3, 224, 224), (64,))


def resnet_half() -> Step:
    """The same with fp16 and channels last."""
    return _supervised(
        _classifier(_resnet50(), 2048), (128, 3, 224, 224), (128,), torch.float16, channels_last=True
    )


def dilated() -> Step:
    """Segmentation with dilated convolutions, as DeepLab has them."""
    body = _resnet50((1, 1, 2, 4))
    head = nn.Sequential(_conv_norm(2048, 256, 3, padding=12, dilation=12), nn.Conv2d(256, 21, 1))
    return _supervised(nn.Sequential(body, head), (8, 3, 256, 256), (8, 32, 32), classes=21)


def vgg() -> Step:
    """VGG-16, single precision."""
    layers: List[nn.Module] = []
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)]
    return _supervised(nn.Sequential(*layers, *head), (32, 3, 224, 224), (32,))


def mobilenet() -> Step:
    """Depthwise convolutions of two sizes, single precision."""
    layers: List[nn.Module] = [_conv_norm(3, 32, 3, 2)]
    inputs = 32
    for width, kernel, stride in ((64, 3, 1), (128, 3, 2), (128, 5, 1), (256, 3, 2), (256, 5, 1), (512, 3, 2),
                                  (512, 5, 1), (512, 7, 1), (1024, 3, 2), (1024, 5, 1)):  # fmt: skip
        layers += [_conv_norm(inputs, inputs, kernel, stride, groups=inputs), _conv_norm(inputs, width, 1)]
        inputs = width
    return _supervised(_classifier(nn.Sequential(*layers), 1024), (96, 3, 224, 224), (96,))


class _UNet(nn.Module):
    def __init__(self, conv: Any, pool: Any, up: Any, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for width in widths:
            self.down.append(self._two(conv, inputs, width))
            inputs = width
        for width in reversed(widths[:-1]):
            self.up.append(up(inputs, width, 2, 2))
            self.join.append(self._two(conv, 2 * width, width))
            inputs = width
        self.pool, self.last = pool(2), conv(inputs, 2, 1)

    @staticmethod
    def _two(conv: Any, inputs: int, width: int) -> nn.Module:
        one, two = conv(inputs, width, 3, padding=1), conv(width, width, 3, padding=1)
        return nn.Sequential(one, nn.GroupNorm(8, width), nn.SiLU(), two, nn.GroupNorm(8, width), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(self.pool(x) if number else x)
            kept.append(x)
        for up, join, other in zip(self.up, self.join, reversed(kept[:-1])):
            x = join(torch.cat((up(x), other), 1))
        y: torch.Tensor = self.last(x)
        return y


def unet() -> Step:
    """A U-Net on 256 x 256 pixels, single precision."""
    model = _UNet(nn.Conv2d, nn.MaxPool2d, nn.ConvTranspose2d, 3, (64, 128, 256, 512))
    return _supervised(model, (8, 3, 256, 256), (8, 256, 256), classes=2)


def volumes() -> Step:
    """A U-Net on volumes."""
    model = _UNet(nn.Conv3d, nn.MaxPool3d, nn.ConvTranspose3d, 1, (32, 64, 128))
    return _supervised(model, (2, 1, 64, 64, 64), (2, 64, 64, 64), classes=2)


def volumes_half() -> Step:
    """The same in bf16."""
    model = _UNet(nn.Conv3d, nn.MaxPool3d, nn.ConvTranspose3d, 1, (32, 64, 128))
    return _supervised(model, (4, 1, 64, 64, 64), (4, 64, 64, 64), torch.bfloat16, classes=2)


def edsr() -> Step:
    """Super-resolution: many convolutions of one width on small patches, single precision."""
    width = 128
    blocks = [
        _Sum(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, padding=1),
            ),
            nn.Identity(),
        )
        for _ in range(16)
    ]
    head, tail = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 4 * width, 3, padding=1)
    model = nn.Sequential(head, *blocks, tail, nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1))
    return _supervised(model, (16, 3, 48, 48), (16, 3, 96, 96), loss=F.l1_loss)


def inception() -> Step:
    """Kernels of 1 x 7 and 7 x 1, 5 x 5 and 3 x 3 beside each other, single precision."""

    class Branches(nn.Module):
        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.a = _conv_norm(inputs, width, 1)
            self.b = nn.Sequential(_conv_norm(inputs, width, 1), _conv_norm(width, width, 5))
            self.c = nn.Sequential(
                nn.Conv2d(inputs, width, (1, 7), padding=(0, 3)),
                nn.Conv2d(width, width, (7, 1), padding=(3, 0)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat((self.a(x), self.b(x), self.c(x)), 1)

    body = nn.Sequential(
        _conv_norm(3, 64, 3, 2), _conv_norm(64, 96), nn.MaxPool2d(2),
        Branches(96, 96), Branches(288, 128), nn.MaxPool2d(2), Branches(384, 160), Branches(480, 160),
    )  # fmt: skip
    return _supervised(_classifier(body, 480), (48, 3, 192, 192), (48,))


def speech() -> Step:
    """1-D convolutions over spectrograms in bf16, dilated and depthwise."""
    width = 384
    layers: List[nn.Module] = [nn.Conv1d(80, width, 5, padding=2)]
    for number in range(8):
        reach = 1 << number % 4
        body = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=reach, dilation=reach), nn.GELU(),
            nn.Conv1d(width, width, 31, padding=15, groups=width), nn.GroupNorm(1, width), nn.GELU(),
            nn.Conv1d(width, width, 1),
        )  # fmt: skip
        layers.append(_Sum(body, nn.Identity()))
    return _supervised(
        nn.Sequential(*layers, nn.Conv1d(width, 64, 1)), (32, 80, 800), (32, 800), torch.bfloat16, classes=64
    )


class _Vit(nn.Module):
    def __init__(self, width: int = 384, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, 8192))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return y


def vit() -> Step:
    """Self-supervised: a student sees large and small crops, its slow copy the large ones; bf16."""
    student, teacher = _Vit().cuda(), _Vit().cuda().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-5)

    def step() -> Any:
        large = torch.randn(64, 3, 224, 224, device="cuda")
        small = torch.randn(128, 3, 96, 96, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                wanted = F.softmax(teacher(large), -1)
            logs = F.log_softmax(student(large), -1)
            loss = -(wanted * logs).sum(-1).mean() - F.log_softmax(student(small), -1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(teacher.parameters(), student.parameters()):
                own.mul_(0.99).add_(other, alpha=0.01)
        return loss

    return step


def gan() -> Step:
    """Images of 64 pixels from noise by transposed convolutions, single precision."""
    widths = (512, 256, 128, 64)
    up: List[nn.Module] = [nn.ConvTranspose2d(128, 512, 4)]
    down: List[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for wide, narrow in zip(widths, widths[1:]):
        up += [nn.BatchNorm2d(wide), nn.ReLU(inplace=True), nn.ConvTranspose2d(wide, narrow, 4, 2, 1)]
    for wide, narrow in reversed(list(zip(widths, widths[1:]))):
        down += [nn.Conv2d(narrow, wide, 4, 2, 1), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2)]
    up += [nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()]
    maker, judge = nn.Sequential(*up).cuda(), nn.Sequential(*down, nn.Conv2d(512, 1, 4)).cuda()
    first = torch.optim.Adam(maker.parameters(), 1e-5)
    second = torch.optim.Adam(judge.parameters(), 1e-5)

    def step() -> Any:
        real = torch.randn(256, 3, 64, 64, device="cuda")
        made = maker(torch.randn(256, 128, 1, 1, device="cuda"))
        second.zero_grad()
        (judge(made.detach()).mean() - judge(real).mean()).backward()
        second.step()
        first.zero_grad()
        loss = -judge(made).mean()
        loss.backward()
        first.step()
        return loss

    return step


class _Residual1d(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, padding=reach * (kernel // 2), dilation=reach))
            for reach in (1, 3, 5)
        )
        self.plain = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, padding=kernel // 2)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, plain in zip(self.wide, self.plain):
            x = x + plain(F.leaky_relu(wide(F.leaky_relu(x, 0.1)), 0.1))
        return x


class _Mean(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = sum(block(x) for block in self) / len(self)
        return y


class _Vocoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(80, width, 7, padding=3))
        self.up, self.mix = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            layer = nn.ConvTranspose1d(width, width // 2, kernel, rate, (kernel - rate) // 2)
            self.up.append(weight_norm(layer))
            width //= 2
            self.mix.append(_Mean(_Residual1d(width, size) for size in (3, 7, 11)))
        self.last = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for up, mix in zip(self.up, self.mix):
            x = mix(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(F.leaky_relu(x)))


class _ByPeriod(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (stride, 1), (2, 0)))
            for a, b, stride in ((1, 32, 3), (32, 128, 3), (128, 512, 3), (512, 1024, 3), (1024, 1024, 1))
        )
        self.last = weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect")
        x = x.view(x.shape[0], 1, -1, self.period)
        return _judged(self, x)


class _ByScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 128, 15, 1, 1), (128, 128, 41, 2, 4), (128, 256, 41, 2, 16), (256, 512, 41, 4, 16),
                 (512, 1024, 41, 4, 16), (1024, 1024, 41, 1, 16), (1024, 1024, 5, 1, 1))  # fmt: skip
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(a, b, kernel, stride, kernel // 2, groups=groups))
            for a, b, kernel, stride, groups in sizes
        )
        self.last = weight_norm(nn.Conv1d(1024, 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        return _judged(self, x)


def _judged(judge: Any, x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    seen = []
    for layer in judge.layers:
        x = F.leaky_relu(layer(x), 0.1)
        seen.append(x)
    return judge.last(x), seen


def _vocoder(width: int, batch: int) -> Step:
    maker = _Vocoder(width).cuda()
    judges = nn.ModuleList([*map(_ByPeriod, (2, 3, 5, 7, 11)), *(_ByScale() for _ in range(3))]).cuda()
    first = torch.optim.AdamW(maker.parameters(), 1e-5)
    second = torch.optim.AdamW(judges.parameters(), 1e-5)

    def step() -> Any:
        mel = torch.randn(batch, 80, 32, device="cuda")
        wave = torch.randn(batch, 1, 8192, device="cuda")
        made = maker(mel)
        second.zero_grad()
        error = sum(
            ((judge(wave)[0] - 1) ** 2).mean() + (judge(made.detach())[0] ** 2).mean() for judge in judges
        )
        error.backward()
        second.step()
        first.zero_grad()
        loss = F.l1_loss(made, wave)
        for judge in judges:
            (_, real), (score, fake) = judge(wave), judge(made)
            loss = loss + ((score - 1) ** 2).mean() + sum(map(F.l1_loss, fake, real))
        loss.backward()
        first.step()
        return loss

    return step


def vocoder() -> Step:
    """A vocoder as HiFi-GAN's first: 1-D convolutions, two kinds of judges; single precision."""
    return _vocoder(512, 16)


def vocoder_narrow() -> Step:
    """As its second, with a larger batch."""
    return _vocoder(128, 32)


NETWORKS: Dict[str, Callable[[], Step]] = {
    made.__name__.replace("_", "-"): made
    for made in (vocoder, vocoder_narrow, vgg, unet, edsr, resnet, inception, gan, mobilenet, dilated,
                 volumes, volumes_half, speech, vit, resnet_half)
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Train the named network for a few steps."""
    torch.backends.cudnn.benchmark = True
    step = NETWORKS[argv[1]]()
    for _ in range(STEPS):
        step()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
