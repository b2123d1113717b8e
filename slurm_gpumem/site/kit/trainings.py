"""The kit's small trainings: `python -m slurm_gpumem.site.kit.trainings NAME` runs one, on the GPU.

To the tracer it is an ordinary script. Needs nothing but PyTorch (2.0 or newer).
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

STEPS = 5
_CLASSES = 100


class Training(NamedTuple):
    """A model, one batch, and how it is trained."""

    model: Callable[[Any], Any]
    """Of torch.nn."""
    batch: Tuple[int, ...]
    """Shape of the input; of a model with `tokens`, of whole numbers below that."""
    optimizer: str = "adamw"
    half: Optional[str] = None
    """Autocast's type: "float16" (with a gradient scaler) or "bfloat16"."""
    tokens: int = 0
    channels_last: bool = False


def _conv_net(nn: Any, widths: Tuple[int, ...], *, pool: bool = True) -> Any:
    layers, before = [], 3
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if pool else []
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, _CLASSES))


def _residual(nn: Any, width: int, blocks: int, *, groups: int = 1) -> Any:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 1 if groups > 1 else 3, padding=0 if groups > 1 else 1, bias=False),
                nn.BatchNorm2d(width),
            )

        def forward(self, x: Any) -> Any:
            return (x + self.body(x)).relu()

    stem = [nn.Conv2d(3, width, 7, stride=4, padding=3), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    body = [Block() for _ in range(blocks)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, _CLASSES))


def _unet(nn: Any) -> Any:
    import torch

    def double(before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(),
        )

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = double(3, 32), double(32, 64), double(64, 128)
            self.up_two, self.up_one = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
            self.back_two, self.back_one = double(128, 64), double(64, 32)
            self.last = nn.Conv2d(32, _CLASSES, 1)

        def forward(self, x: Any) -> Any:
            one = self.one(x)
            two = self.two(nn.functional.max_pool2d(one, 2))
            up = self.up_two(self.three(nn.functional.max_pool2d(two, 2)))
            up = self.up_one(self.back_two(torch.cat([up, two], 1)))
            return self.last(self.back_one(torch.cat([up, one], 1))).mean((2, 3))

    return UNet()


def _conv_1d(nn: Any) -> Any:
    def block(before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv1d(before, after, 9, stride=2, padding=4), nn.BatchNorm1d(after), nn.GELU()
        )

    body = nn.Sequential(block(1, 64), block(64, 128), block(128, 256), block(256, 256))
    return nn.Sequential(body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, _CLASSES))


def _conv_3d(nn: Any) -> Any:
    def block(before: int, after: int) -> Any:
        return nn.Sequential(nn.Conv3d(before, after, 3, padding=1), nn.BatchNorm3d(after), nn.ReLU())

    body = nn.Sequential(block(3, 32), nn.MaxPool3d(2), block(32, 64), block(64, 64))
    return nn.Sequential(body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, _CLASSES))


def _autoencoder(nn: Any) -> Any:
    down = [nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Flatten()]
    return nn.Sequential(*down, *up, nn.Linear(3 * 64 * 64, _CLASSES))


def _mlp(nn: Any, width: int, layers: int) -> Any:
    body = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*body, nn.LayerNorm(width), nn.Linear(width, _CLASSES))


def _encoder(nn: Any, width: int, layers: int, tokens: int = 0, patch: int = 0) -> Any:
    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(tokens, width) if tokens else nn.Conv2d(3, width, patch, patch)
            self.body = nn.ModuleList(
                nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
            self.last = nn.Linear(width, _CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.first(x) if tokens else self.first(x).flatten(2).transpose(1, 2)
            for layer in self.body:
                x = layer(x)
            return self.last(x.mean(1))

    return Encoder()


def _decoder(nn: Any, width: int, layers: int, tokens: int) -> Any:
    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.ask, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            size, length = x.shape[:2]
            asked = self.ask(self.norm_one(x)).view(size, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(asked[0], asked[1], asked[2], is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
            return x + self.feed(self.norm_two(x))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
            self.body = nn.Sequential(*[Layer() for _ in range(layers)])

        def forward(self, x: Any) -> Any:
            return self.last(self.body(self.first(x))).flatten(0, 1)

    return Decoder()


def _recurrent(nn: Any, kind: str, width: int) -> Any:
    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(20_000, width)
            self.body = getattr(nn, kind)(width, width, num_layers=2, batch_first=True)
            self.last = nn.Linear(width, _CLASSES)

        def forward(self, x: Any) -> Any:
            return self.last(self.body(self.first(x))[0][:, -1])

    return Recurrent()


def _recommender(nn: Any) -> Any:
    body = [nn.Linear(32 * 64, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, _CLASSES)]
    return nn.Sequential(nn.Embedding(1_000_000, 64), nn.Flatten(), *body)


TRAININGS: Dict[str, Training] = {
    "cnn": Training(lambda nn: _conv_net(nn, (64, 128, 256)), (128, 3, 96, 96)),
    "cnn-bf16": Training(lambda nn: _conv_net(nn, (64, 128, 256)), (256, 3, 96, 96), half="bfloat16"),
    "cnn-wide": Training(lambda nn: _conv_net(nn, (64, 64, 64), pool=False), (16, 3, 160, 160), "adam"),
    "vgg-like": Training(lambda nn: _conv_net(nn, (64, 128, 256, 512, 512)), (16, 3, 224, 224), "momentum"),
    "resnet-like": Training(lambda nn: _residual(nn, 128, 8), (32, 3, 224, 224), "momentum"),
    "resnet-like-fp16": Training(lambda nn: _residual(nn, 128, 8), (64, 3, 224, 224), half="float16"),
    "resnet-like-last": Training(
        lambda nn: _residual(nn, 128, 8), (64, 3, 224, 224), "momentum", "bfloat16", channels_last=True
    ),
    "separable": Training(lambda nn: _residual(nn, 192, 10, groups=192), (32, 3, 224, 224)),
    "unet": Training(_unet, (8, 3, 192, 192), "adam"),
    "unet-bf16": Training(_unet, (16, 3, 192, 192), half="bfloat16"),
    "autoencoder": Training(_autoencoder, (128, 3, 64, 64), "adam"),
    "conv-1d": Training(_conv_1d, (64, 1, 16_384)),
    "conv-3d": Training(_conv_3d, (4, 3, 16, 96, 96), "sgd"),
    "mlp": Training(lambda nn: _mlp(nn, 4096, 6), (1024, 4096)),
    "mlp-bf16": Training(lambda nn: _mlp(nn, 4096, 6), (4096, 4096), "sgd", "bfloat16"),
    "encoder": Training(lambda nn: _encoder(nn, 512, 6, 30_000), (16, 256), tokens=30_000),
    "vit-like-fp16": Training(lambda nn: _encoder(nn, 384, 8, patch=16), (64, 3, 224, 224), half="float16"),
    "decoder-bf16": Training(
        lambda nn: _decoder(nn, 512, 6, 16_000), (8, 512), half="bfloat16", tokens=16_000
    ),
    "lstm": Training(lambda nn: _recurrent(nn, "LSTM", 512), (64, 128), "adam", tokens=20_000),
    "recommender": Training(_recommender, (4096, 32), "sgd", tokens=1_000_000),
}


def train(name: str) -> None:
    """A few steps of it; what it holds stays until it returns."""
    import torch

    plan, device = TRAININGS[name], torch.device("cuda")
    torch.manual_seed(0)
    model = plan.model(torch.nn).to(device)
    if plan.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = _optimizer(torch, plan.optimizer, model.parameters())
    half = getattr(torch, plan.half) if plan.half else None
    scaler = torch.cuda.amp.GradScaler(enabled=plan.half == "float16")
    for _ in range(STEPS):
        batch = torch.randint(0, plan.tokens, plan.batch) if plan.tokens else torch.randn(plan.batch)
        batch = batch.to(device)
        if plan.channels_last:
            batch = batch.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=half) if half else nullcontext():
            out = model(batch)
            loss = torch.nn.functional.cross_entropy(
                out, torch.randint(0, _CLASSES, (out.shape[0],)).to(device)
            )
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()


def _optimizer(torch: Any, name: str, parameters: Any) -> Any:
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, 1e-3, momentum=0.9 if name == "momentum" else 0.0)
    return (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(parameters, 1e-4)


if __name__ == "__main__":
    train(sys.argv[1])
