"""The configurations as torch modules, so that their training can be traced. Needs torch."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import Tensor, nn

from lab.gpumemnet.configurations import Configuration
from slurm_gpumem.estimators.published.features import CNN, MLP
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.model.live import summarize


def traced_summary(drawn: Configuration) -> ModelSummary:
    """The configuration's training steps, traced on meta tensors at its own batch size."""
    arguments = drawn.arguments
    with torch.device("meta"):
        if drawn.family == MLP:
            model, shape = _mlp(arguments), [arguments["inputs"]]
        elif drawn.family == CNN:
            model, shape = _cnn(arguments), [arguments["channels"], *[arguments["pixels"]] * 2]
        else:
            model, shape = _Transformer(arguments), [arguments["length"]]
        tokens = torch.int64 if isinstance(model, _Transformer) else torch.float32
        batch = torch.zeros(drawn.batch, *shape, dtype=tokens)
        single = drawn.family == MLP and arguments["outputs"] == 1
        target = torch.zeros(drawn.batch, 1) if single else torch.zeros(drawn.batch, dtype=torch.int64)
        loss: nn.Module = nn.BCEWithLogitsLoss() if single else nn.CrossEntropyLoss()
        return summarize(model, batch, target=target, loss=loss, scalable=False)


def _between(arguments: Dict[str, Any], norm: nn.Module) -> List[nn.Module]:
    found = [norm] if arguments["norm"] else []
    found.append(getattr(nn, arguments["activation"])())
    return [*found, nn.Dropout(arguments["dropout"])] if arguments["dropout"] else found


def _mlp(arguments: Dict[str, Any]) -> nn.Module:
    layers: List[nn.Module] = []
    before = arguments["inputs"]
    for width in arguments["widths"]:
        layers += [nn.Linear(before, width), *_between(arguments, nn.BatchNorm1d(width))]
        before = width
    layers.append(nn.Linear(before, arguments["outputs"]))
    return nn.Sequential(*layers, nn.Softmax(1) if arguments["outputs"] > 1 else nn.Sigmoid())


def _cnn(arguments: Dict[str, Any]) -> nn.Module:
    layers: List[nn.Module] = []
    before = arguments["channels"]
    for count in arguments["filters"]:
        layers += [nn.Conv2d(before, count, 3, padding=1), *_between(arguments, nn.BatchNorm2d(count))]
        before = count
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, arguments["classes"])]
    return nn.Sequential(*layers, nn.Softmax(1))


class _Transformer(nn.Module):
    def __init__(self, arguments: Dict[str, Any]) -> None:
        super().__init__()
        width = arguments["width"]
        self.embedding = nn.Embedding(arguments["vocabulary"], width)
        self.position = nn.Parameter(torch.zeros(1, arguments["length"], width))
        layer = nn.TransformerEncoderLayer(
            width, arguments["heads"], arguments["hidden"], arguments["dropout"], batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, arguments["depth"], enable_nested_tensor=False)
        self.head = nn.Linear(width, arguments["classes"])

    def forward(self, tokens: Tensor) -> Tensor:
        encoded = self.encoder(self.embedding(tokens) + self.position)
        out: Tensor = self.head(encoded.mean(1))
        return out
