"""GPUMemNet's two classifiers: ensembles of 13 small perceptrons, and of 13 small Transformer encoders.

From the documents: 13 members, the perceptrons 1 to 7 and 1 to 6 layers deep with different numbers of
neurons, classes of equal width in memory, cross-entropy, Adam. models/gpumemnet.md says what was assumed
beyond that.
"""

from __future__ import annotations

import random
from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn

from slurm_gpumem.training.gpumemnet_rows import LONGEST, NetRow

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6)
MEMBERS = len(DEPTHS)
NEURONS = (8, 32)
ENCODERS = tuple(
    (depth, width, heads) for depth in (1, 2) for width, heads in ((8, 1), (8, 2), (16, 1), (16, 2), (16, 4))
)
RATE = 1e-3
BATCH = 128
EPOCHS = {"mlp": 400, "transformer": 60}
SEED = 13

Inputs = Tuple[Tensor, Tensor, Tensor]
"""Features, sequences of layers, and which of their places are padding."""


class Perceptrons(nn.Module):
    """The 13 perceptrons of the MLP-based ensemble in tensors as wide and deep as the largest.

    Neurons that a member lacks are masked and layers that it lacks are passed by: each learns what it would
    learn alone, all of them in a thirteenth of the steps.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        draw = random.Random(SEED)
        widest, deepest = NEURONS[1], max(DEPTHS)
        self.masks = torch.zeros(deepest, MEMBERS, 1, widest)
        self.lacks = torch.tensor([[depth <= layer for depth in DEPTHS] for layer in range(deepest)])
        weights = [torch.zeros(MEMBERS, widest if layer else inputs, widest) for layer in range(deepest)]
        weights.append(torch.zeros(MEMBERS, widest, classes))
        for member, depth in enumerate(DEPTHS):
            before = inputs
            for layer in range(depth):
                width = draw.randint(*NEURONS)
                self.masks[layer, member, 0, :width] = 1
                nn.init.uniform_(weights[layer][member], -(before**-0.5), before**-0.5)
                before = width
            nn.init.uniform_(weights[-1][member], -(before**-0.5), before**-0.5)
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([torch.zeros(MEMBERS, 1, weight.shape[2]) for weight in weights])

    def forward(self, features: Tensor, sequence: Tensor, padding: Tensor) -> Tensor:
        """Logits of every member; the sequence is not looked at."""
        hidden = features.expand(MEMBERS, *features.shape)
        for layer, mask in enumerate(self.masks):
            made = torch.baddbmm(self.biases[layer], hidden, self.weights[layer]).relu() * mask
            hidden = torch.where(self.lacks[layer].view(-1, 1, 1), hidden, made) if layer else made
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])


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
        """Logits from the mean of the encoded layers and the features, as those of one member."""
        encoded = self.encoder(self.embed(sequence) + self.place, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(-1)
        mean = (encoded * real).sum(1) / real.sum(1)
        logits: Tensor = self.head(torch.cat([mean, features], 1))
        return logits.unsqueeze(0)


def ensemble(kind: str, inputs: int, tokens: int, classes: int) -> List[nn.Module]:
    """The networks of an ensemble ("mlp" or "transformer"): one module of all members, or one a member."""
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
        _fit(net, ((features - mean) / spread, sequence, padding), labels, EPOCHS[kind])
    features, sequence, padding = _tensors(test)
    with torch.no_grad():
        inputs = ((features - mean) / spread, sequence, padding)
        chances = torch.cat([net.eval()(*inputs) for net in nets]).softmax(-1).mean(0)
    return [int(value) for value in chances.argmax(1)]


def _fit(net: nn.Module, inputs: Inputs, labels: Tensor, epochs: int) -> None:
    """Adam on the cross-entropy of each member."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    net.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            logits = net(*(tensor[chosen] for tensor in inputs))
            wanted = labels[chosen].expand(len(logits), -1)
            # The sum over members, so that each learns as if it were alone.
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
            loss.mean(1).sum().backward()
            optimizer.step()


def _tensors(rows: Sequence[NetRow]) -> Inputs:
    width = len(rows[0].sequence[0])
    sequence = torch.zeros(len(rows), LONGEST, width)
    padding = torch.ones(len(rows), LONGEST, dtype=torch.bool)
    for number, row in enumerate(rows):
        sequence[number, : len(row.sequence)] = torch.tensor(row.sequence)
        padding[number, : len(row.sequence)] = False
    return torch.tensor([row.features for row in rows]), sequence, padding
