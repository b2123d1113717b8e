"""GPUMemNet's two classifiers as in the authors' code, and their export as plain numbers. Needs torch.

Perceptrons: every hidden layer is linear, batch norm, ReLU; 8 neurons in the first, 4 in the others; members
differ in depth alone, their logits are averaged, and the loss is that of the average. Features come as they
are: the first batch norm scales them. The Transformer-based classifier has two small encoders, each with such
an ensemble as its head; layers are embedded by two linear layers with a batch norm over the places.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from slurm_gpumem.estimators.published.features import CNN

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6)
CNN_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 4, 5, 6)
"""The published text has 13 members for all data sets; the authors' code has 16 for CNNs."""
WIDEST, NARROWEST = 8, 4
ENCODERS = ((6, 3, 4), (4, 2, 4))
"""Width, layers and hidden width of each encoder; one head of attention, no dropout."""
_WAVELENGTH = 10_000.0


class Perceptrons(nn.Module):
    """All members as one wide network whose blocks do not touch: each computes what it would alone.

    Weights between members are masked, and layers that a member lacks are passed by.
    """

    def __init__(self, inputs: int, classes: int, depths: Sequence[int] = DEPTHS) -> None:
        super().__init__()
        self.depths, self.inputs, self.classes = tuple(depths), inputs, classes
        self.weights, self.norms = nn.ParameterList(), nn.ModuleList()
        self.biases = nn.ParameterList()
        wide = WIDEST * len(depths)
        for layer in range(max(depths)):
            weight, mask = (
                torch.zeros(inputs if layer == 0 else wide, wide),
                torch.zeros(wide, dtype=torch.bool),
            )
            for member, depth in enumerate(depths):
                if layer < depth:
                    rows, columns = self._rows(member, layer), self._columns(member, layer)
                    nn.init.xavier_uniform_(weight[rows, columns])
                    mask[columns] = True
            self._add(weight, wide)
            self.norms.append(nn.BatchNorm1d(wide))
            self.register_buffer(f"has{layer}", mask, persistent=False)
        weight = torch.zeros(wide, len(depths) * classes)
        for member, depth in enumerate(depths):
            nn.init.xavier_uniform_(weight[self._rows(member, depth), self._last(member)])
        self._add(weight, len(depths) * classes)

    def _add(self, weight: Tensor, outputs: int) -> None:
        self.register_buffer(f"mask{len(self.weights)}", (weight != 0).float(), persistent=False)
        self.weights.append(nn.Parameter(weight))
        self.biases.append(nn.Parameter(torch.zeros(outputs)))

    def _columns(self, member: int, layer: int) -> slice:
        first = member * WIDEST
        return slice(first, first + max(WIDEST >> layer, NARROWEST))

    def _rows(self, member: int, layer: int) -> slice:
        return self._columns(member, layer - 1) if layer else slice(0, self.inputs)

    def _last(self, member: int) -> slice:
        return slice(member * self.classes, (member + 1) * self.classes)

    def forward(self, totals: Tensor) -> Tensor:
        """The mean of the members' logits."""
        hidden = totals
        for layer, norm in enumerate(self.norms):
            made = norm(self._linear(layer, hidden)).relu()
            has = getattr(self, f"has{layer}")
            hidden = torch.where(has, made, hidden) if layer else made * has
        logits = self._linear(len(self.norms), hidden)
        return logits.view(len(totals), len(self.depths), -1).mean(1)

    def _linear(self, layer: int, hidden: Tensor) -> Tensor:
        return torch.addmm(self.biases[layer], hidden, self.weights[layer] * getattr(self, f"mask{layer}"))

    def exported(self) -> List[List[Tuple[List[List[float]], List[float]]]]:
        """Each member's layers by output, batch norms folded into the layer before them."""
        members = []
        for member, depth in enumerate(self.depths):
            layers = []
            for layer in range(depth):
                columns = self._columns(member, layer)
                scale, shift = _as_line(self.norms[layer])
                weight = self.weights[layer][self._rows(member, layer), columns].double()
                bias = self.biases[layer].double() * scale + shift
                layers.append(_layer((weight * scale[columns]).T, bias[columns]))
            weight = self.weights[-1][self._rows(member, depth), self._last(member)]
            layers.append(_layer(weight.T, self.biases[-1][self._last(member)]))
            members.append(layers)
        return members


class Block(nn.Module):
    """A Transformer layer as it answers for one job.

    In the authors' code the encoder takes (sample, layer, width) for (sequence, batch, width), so samples of
    a batch attend to each other, and a job that is asked for alone attends to itself: what is left of
    attention are its projections of value and output. They are trained in this form, which is that of every
    answer.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.norm1(hidden + self.out(self.value(hidden)))
        made: Tensor = self.norm2(hidden + self.narrow(self.wide(hidden).relu()))
        return made

    def exported(self) -> Dict[str, Any]:
        """Plain numbers; both projections as one."""
        out, value = self.out.weight.double(), self.value.weight.double()
        return {
            "attention": _layer(out @ value, out @ self.value.bias.double() + self.out.bias.double()),
            "norm1": _layer(self.norm1.weight, self.norm1.bias),
            "wide": _layer(self.wide.weight, self.wide.bias),
            "narrow": _layer(self.narrow.weight, self.narrow.bias),
            "norm2": _layer(self.norm2.weight, self.norm2.bias),
        }


class Encoder(nn.Module):
    """One member of the Transformer-based ensemble."""

    def __init__(
        self, tokens: int, length: int, beside: int, classes: int, shape: Tuple[int, int, int]
    ) -> None:
        super().__init__()
        width, depth, hidden = shape
        self.first, self.first_norm = nn.Linear(tokens, width), nn.BatchNorm1d(length)
        self.second, self.second_norm = nn.Linear(width, width), nn.BatchNorm1d(length)
        self.register_buffer("places", _places(length, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.head = Perceptrons(width + beside, classes)
        self.length = length

    def forward(self, sequence: Tensor, beside: Tensor) -> Tensor:
        """The mean of its head's logits."""
        hidden = self.first_norm(self.first(sequence)).relu()
        hidden = self.second_norm(self.second(hidden)).relu()
        hidden = hidden + self.places
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(torch.cat([hidden.sum(1), beside], 1))
        return logits

    def exported(self) -> Dict[str, Any]:
        """Plain numbers."""
        embedding = [(self.first, self.first_norm), (self.second, self.second_norm)]
        return {
            "length": self.length,
            "embedding": [
                [_layer(linear.weight, linear.bias), *map(_numbers, _as_line(norm))]
                for linear, norm in embedding
            ],
            "blocks": [block.exported() for block in self.blocks],  # type: ignore[operator]
            "members": self.head.exported(),
        }


class Encoders(nn.Module):
    """The Transformer-based ensemble: the mean of its encoders' logits."""

    def __init__(self, tokens: int, length: int, beside: int, classes: int) -> None:
        super().__init__()
        self.length = length
        self.encoders = nn.ModuleList(Encoder(tokens, length, beside, classes, shape) for shape in ENCODERS)

    def forward(self, sequence: Tensor, beside: Tensor) -> Tensor:
        return torch.stack([encoder(sequence, beside) for encoder in self.encoders]).mean(0)


def depths_for(family: str) -> Tuple[int, ...]:
    """The depths of the MLP-based ensemble's members."""
    return CNN_DEPTHS if family == CNN else DEPTHS


def _places(length: int, width: int) -> Tensor:
    place = torch.arange(length).unsqueeze(1)
    angles = place * torch.exp(torch.arange(0, width, 2) * (-torch.log(torch.tensor(_WAVELENGTH)) / width))
    found = torch.zeros(length, width)
    found[:, 0::2], found[:, 1::2] = torch.sin(angles), torch.cos(angles)
    return found


def _as_line(norm: nn.Module) -> Tuple[Tensor, Tensor]:
    """What a batch norm does to one example: a factor and a number to add."""
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _layer(weight: Tensor, bias: Tensor) -> Tuple[Any, List[float]]:
    rows = [_numbers(row) for row in weight] if weight.dim() == 2 else _numbers(weight)
    return rows, _numbers(bias)


def _numbers(values: Tensor) -> List[float]:
    found: List[float] = values.detach().double().tolist()
    return found
