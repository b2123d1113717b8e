"""GPUMemNet's two classifiers: ensembles of 13 small perceptrons, and of 13 small Transformer encoders.

As published: 13 members, the perceptrons 1 to 7 and 1 to 6 layers deep with different numbers of neurons,
classes of equal width in memory, cross-entropy, Adam. lab/data/predictions/gpumemnet-refit.md says what was
assumed beyond that.
"""

from __future__ import annotations

import random
from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn

from lab.gpumemnet.rows import LONGEST, NetRow

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6)
MEMBERS = len(DEPTHS)
NEURONS = (4, 8)
ENCODERS = tuple(
    (depth, width, heads) for depth in (1, 2) for width, heads in ((8, 1), (8, 2), (16, 1), (16, 2))
)
RATE = 2e-2
BATCH = 128
STEPS = {"mlp": 200, "transformer": 120}
SEED = 13

Inputs = Tuple[Tensor, Tensor, Tensor]
"""Features, sequences of layers, and which of their places are padding."""


class Perceptrons(nn.Module):
    """The 13 perceptrons of the MLP-based ensemble, as one wide network whose blocks do not touch.

    Weights between members are masked, and layers that a member lacks are passed by: each computes and learns
    what it would alone, in far fewer steps of Python.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        draw = random.Random(SEED)
        widest, deepest = NEURONS[1], max(DEPTHS)
        wide = widest * MEMBERS
        sizes = [inputs, *[wide] * deepest, classes * MEMBERS]
        weights = [torch.zeros(before, after) for before, after in zip(sizes, sizes[1:])]
        self.masks = [torch.zeros_like(weight) for weight in weights]
        self.has = torch.zeros(deepest, wide, dtype=torch.bool)
        for member, depth in enumerate(DEPTHS):
            first = member * widest
            rows = slice(0, inputs)
            for layer in range(depth):
                columns = slice(first, first + draw.randint(*NEURONS))
                self._join(weights[layer], self.masks[layer], rows, columns)
                self.has[layer, columns] = True
                rows = columns
            columns = slice(member * classes, (member + 1) * classes)
            self._join(weights[-1], self.masks[-1], rows, columns)
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([torch.zeros(size) for size in sizes[1:]])

    @staticmethod
    def _join(weight: Tensor, mask: Tensor, rows: slice, columns: slice) -> None:
        mask[rows, columns] = 1
        limit = (rows.stop - rows.start) ** -0.5
        weight[rows, columns] = (torch.rand(weight[rows, columns].shape) * 2 - 1) * limit

    def forward(self, features: Tensor, sequence: Tensor, padding: Tensor) -> Tensor:
        """Logits of every member; the sequence is not looked at."""
        hidden = features
        for layer, has in enumerate(self.has):
            made = torch.addmm(self.biases[layer], hidden, self.weights[layer] * self.masks[layer]).relu()
            hidden = torch.where(has, made, hidden) if layer else made * has
        logits = torch.addmm(self.biases[-1], hidden, self.weights[-1] * self.masks[-1])
        return logits.view(len(features), MEMBERS, -1)


class Encoder(nn.Module):
    """A member of the Transformer-based ensemble: the sequence of layers, the other features beside it."""

    def __init__(self, inputs: int, tokens: int, classes: int, shape: Tuple[int, int, int]) -> None:
        super().__init__()
        depth, width, heads = shape
        self.embed = nn.Linear(tokens, width)
        self.place = nn.Parameter(torch.zeros(LONGEST, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(
            nn.Linear(width + inputs, 4 * width), nn.ReLU(), nn.Linear(4 * width, classes)
        )

    def forward(self, features: Tensor, sequence: Tensor, padding: Tensor) -> Tensor:
        """Logits from the mean of the encoded layers and the features."""
        encoded = self.encoder(self.embed(sequence) + self.place, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(-1)
        mean = (encoded * real).sum(1) / real.sum(1)
        logits: Tensor = self.head(torch.cat([mean, features], 1))
        return logits.unsqueeze(1)


def ensemble(kind: str, inputs: int, tokens: int, classes: int) -> List[nn.Module]:
    """The 13 differently shaped members of an ensemble ("mlp" or "transformer"), in one module or in 13."""
    if kind == "mlp":
        return [Perceptrons(inputs, classes)]
    shapes = [ENCODERS[number % len(ENCODERS)] for number in range(MEMBERS)]
    return [Encoder(inputs, tokens, classes, shape) for shape in shapes]


def classify(kind: str, train: Sequence[NetRow], test: Sequence[NetRow], bin_mib: int) -> List[int]:
    """Train an ensemble on some rows and tell the memory class (from 0) of others."""
    torch.manual_seed(SEED)
    features, sequence, padding = _tensors(train)
    mean, spread = features.mean(0), features.std(0).clamp(min=1e-6)
    labels = torch.tensor([row.real_mib // bin_mib for row in train])
    nets = ensemble(kind, features.shape[1], sequence.shape[2], int(labels.max()) + 1)
    for net in nets:
        _fit(net, ((features - mean) / spread, sequence, padding), labels, STEPS[kind])
    features, sequence, padding = _tensors(test)
    with torch.no_grad():
        inputs = ((features - mean) / spread, sequence, padding)
        chances = torch.cat([net.eval()(*inputs) for net in nets], 1).softmax(-1).mean(1)
    return [int(value) for value in chances.argmax(1)]


def _fit(net: nn.Module, inputs: Inputs, labels: Tensor, steps: int) -> None:
    """Adam on the cross-entropy, the rows in a new order each time they are through."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    net.train()
    waiting: List[Tensor] = []
    for _ in range(steps):
        waiting = waiting or list(torch.randperm(len(labels)).split(BATCH))
        chosen = waiting.pop()
        optimizer.zero_grad()
        logits = net(*(tensor[chosen] for tensor in inputs))
        wanted = labels[chosen].unsqueeze(1).expand(-1, logits.shape[1])
        # The sum over members, so that each learns as if it were alone.
        each = nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        each.mean(0).sum().backward()
        optimizer.step()


def _tensors(rows: Sequence[NetRow]) -> Inputs:
    width = len(rows[0].sequence[0])
    sequence = torch.zeros(len(rows), LONGEST, width)
    padding = torch.ones(len(rows), LONGEST, dtype=torch.bool)
    for number, row in enumerate(rows):
        sequence[number, : len(row.sequence)] = torch.tensor(row.sequence)
        padding[number, : len(row.sequence)] = False
    return torch.tensor([row.features for row in rows]), sequence, padding
