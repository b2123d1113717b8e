"""The models whose summaries are fixtures; needs torch, timm and transformers (weights are never loaded)."""

from __future__ import annotations

from typing import Callable, Dict, Tuple

import torch
from torch import nn

Inputs = Tuple[torch.Tensor, ...]
Built = Tuple[nn.Module, Inputs]
BATCH = 4


def _timm(name: str, pixels: int = 64, **options: object) -> Callable[[], Built]:
    def build() -> Built:
        import timm

        return timm.create_model(name, **options), (torch.zeros(BATCH, 3, pixels, pixels),)

    return build


def _tokens(length: int = 16) -> torch.Tensor:
    return torch.zeros(BATCH, length, dtype=torch.long)


def bert() -> Built:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_hidden_layers=3)), (_tokens(),)


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=3, use_cache=False)), (_tokens(),)


def t5() -> Built:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(num_layers=2, d_model=256, d_ff=512)), (_tokens(),)


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    return LlamaForCausalLM(config), (_tokens(),)


class LstmClassifier(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 32)
        self.rnn = nn.LSTM(32, 64, num_layers=2, batch_first=batch_first, bidirectional=True)
        self.head = nn.Linear(128, 5)
        self.batch_first = batch_first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.rnn(self.embedding(tokens))
        return self.head(x[:, -1] if self.batch_first else x[-1])


class GruTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = DoubleConv(3, 16), DoubleConv(16, 32), DoubleConv(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.merge2, self.merge1 = DoubleConv(64, 32), DoubleConv(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        x = self.up2(self.bottom(self.pool(two)))
        x = self.up1(self.merge2(torch.cat([x, two], 1)))
        return self.head(self.merge1(torch.cat([x, one], 1)))


class Shared(nn.Module):
    """The same linear layer three times, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.activation = nn.ReLU()
        self.unused = nn.Linear(32, 999)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.activation(self.inner(x))
        return self.head(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.table = nn.Sequential(nn.Linear(10, 8), nn.ReLU())
        self.head = nn.Bilinear(8, 8, 3)

    def forward(self, image: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.head(self.image(image), self.table(table))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.GELU(), nn.Flatten())
        self.head = nn.Linear(16 * 30 * 30, 10)
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def transformer() -> Built:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10))
    return model, (torch.zeros(BATCH, 12, 64),)


def volumes() -> Built:
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(), nn.MaxPool3d(2),
        nn.Flatten(), nn.Dropout(), nn.Linear(8 * 4**3, 2), nn.LogSoftmax(1),
    )  # fmt: skip
    return model, (torch.zeros(BATCH, 1, 8, 8, 8),)


def audio() -> Built:
    model = nn.Sequential(
        nn.Conv1d(1, 16, 80, stride=4), nn.BatchNorm1d(16), nn.PReLU(), nn.MaxPool1d(4), nn.Conv1d(16, 32, 3),
        nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 35),
    )  # fmt: skip
    return model, (torch.zeros(BATCH, 1, 4000),)


def generator() -> Built:
    model = nn.Sequential(
        nn.ConvTranspose2d(100, 128, 4, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 3, 1), nn.Sigmoid(),
    )  # fmt: skip
    return model, (torch.zeros(BATCH, 100, 1, 1),)


MODELS: Dict[str, Callable[[], Built]] = {
    "resnet18": _timm("resnet18"),
    "resnet50": _timm("resnet50", 224),
    "mobilenetv3": _timm("mobilenetv3_small_100"),
    "efficientnet": _timm("efficientnet_b0"),
    "vit": _timm("vit_tiny_patch16_224", 224, depth=3),
    "swin": _timm("swin_tiny_patch4_window7_224", 224, depths=(1, 2, 1, 1)),
    "densenet": _timm("densenet121"),
    "convnext": _timm("convnext_atto"),
    "vgg": _timm("vgg11_bn"),
    "regnet": _timm("regnety_002"),
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
    "llama": llama,
    "lstm": lambda: (LstmClassifier(batch_first=True), (_tokens(20),)),
    "lstm-time-first": lambda: (LstmClassifier(batch_first=False), (_tokens(20).T.contiguous(),)),
    "gru": lambda: (GruTagger(), (torch.zeros(BATCH, 10, 24),)),
    "unet": lambda: (UNet(), (torch.zeros(BATCH, 3, 32, 32),)),
    "shared": lambda: (Shared(), (torch.zeros(BATCH, 32),)),
    "two-inputs": lambda: (TwoInputs(), (torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, 10))),
    "frozen": lambda: (Frozen(), (torch.zeros(BATCH, 3, 32, 32),)),
    "transformer": transformer,
    "volumes": volumes,
    "audio": audio,
    "generator": generator,
}
