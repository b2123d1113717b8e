"""Networks drawn from a seed: random functional code between modules, as somebody might have written it.

A network is a stem, some blocks and a head. A block registers plain modules of torch.nn and runs a program of
steps over them; the steps are calls in its `forward`, so that no summary shows them. Block classes get names
of their own, as researchers' classes have.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.zoo.written.generated_images import IMAGE_STEPS
from lab.zoo.written.generated_series import SERIES_STEPS

Step = Callable[[Tensor], Tensor]
_FIRST = [
    "Pair",
    "Gate",
    "Mix",
    "Cross",
    "Ring",
    "Fold",
    "Shift",
    "Local",
    "Global",
    "Dual",
    "Delta",
    "Echo",
    "Prism",
    "Lattice",
    "Flow",
    "Spiral",
    "Wide",
    "Deep",
    "Soft",
    "Sparse",
    "Ghost",
    "Twin",
    "Swift",
    "Hyper",
    "Meta",
    "Micro",
    "Macro",
    "Aux",
    "Core",
    "Edge",
]
_SECOND = [
    "Block",
    "Unit",
    "Layer",
    "Mixer",
    "Cell",
    "Stage",
    "Module",
    "Encoder",
    "Fusion",
    "Op",
    "Net",
    "Stack",
    "Former",
    "Conv",
]


class Block(nn.Module):
    """Runs its steps in order; kinds of residual differ."""

    def __init__(self, rng: random.Random, steps: Dict[str, Any], width: int, many: int) -> None:
        super().__init__()
        self.residual = rng.choice(("sum", "sum", "none", "cat", "gate", "scaled"))
        names = rng.choices(list(steps), [weight for _, weight in steps.values()], k=many)
        self.program: List[Step] = [
            steps[name][0](self, f"{name}{i}", rng, width) for i, name in enumerate(names)
        ]
        self.images = steps is IMAGE_STEPS
        join: Any = nn.Conv2d if self.images else nn.Linear
        extra = (1,) if self.images else ()
        if self.residual == "cat":
            self.join = join(2 * width, width, *extra)
        if self.residual == "gate":
            self.gate = join(width, width, *extra)
        if self.residual == "scaled":
            self.scale = nn.Parameter(torch.ones(1))
        if rng.random() < 0.15:
            self.unused = nn.Linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """The program, then the residual."""
        y = x
        for step in self.program:
            y = step(y)
        if self.residual == "sum":
            return x + y
        if self.residual == "cat":
            joined: Tensor = self.join(torch.cat([x, y], 1 if self.images else -1))
            return joined
        if self.residual == "gate":
            g = torch.sigmoid(self.gate(x))
            return g * y + (1 - g) * x
        return x + self.scale * y if self.residual == "scaled" else y


class _Network(nn.Module):
    def __init__(self, stem: nn.Module, blocks: List[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head


class _Series(_Network):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x.mean(1))
        return out


class _Tokens(_Network):
    def forward(self, ids: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
        x = self.stem(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), logits


class _Images(_Network):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == len(self.blocks) // 2:
                x = F.avg_pool2d(x, 2)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def _named(kind: type, rng: random.Random) -> Any:
    """The class under a name that somebody might have given it."""
    return type(rng.choice(_FIRST) + rng.choice(_SECOND), (kind,), {"__module__": __name__})


def _blocks(rng: random.Random, steps: Dict[str, Any], width: int, many: int) -> List[nn.Module]:
    kinds = [_named(Block, rng) for _ in range(rng.randint(1, 2))]
    seeds = [rng.random() for _ in kinds]
    length = [rng.randint(1, 4) for _ in kinds]
    blocks = []
    for i in range(many):
        k = i % len(kinds)
        blocks.append(kinds[k](random.Random(seeds[k]), steps, width, length[k]))  # one class, one program
    return blocks


def series(seed: int, features: int = 16, classes: int = 10) -> nn.Module:
    """Over [batch, time, features], one label a series."""
    rng = random.Random(seed)
    width = rng.choice((48, 64, 96, 128, 192, 256))
    blocks = _blocks(rng, SERIES_STEPS, width, rng.randint(2, 5))
    net: nn.Module = _named(_Series, rng)(nn.Linear(features, width), blocks, nn.Linear(width, classes))
    return net


def tokens(seed: int, vocabulary: int = 4000) -> nn.Module:
    """Over token numbers; the loss is taken in forward."""
    rng = random.Random(seed)
    width = rng.choice((64, 128, 192, 256, 320))
    blocks = _blocks(rng, SERIES_STEPS, width, rng.randint(2, 6))
    stem, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    net: nn.Module = _named(_Tokens, rng)(stem, blocks, head)
    return net


def images(seed: int, classes: int = 10) -> nn.Module:
    """Over pictures, one label each."""
    rng = random.Random(seed)
    width = rng.choice((16, 24, 32, 48, 64))
    blocks = _blocks(rng, IMAGE_STEPS, width, rng.randint(2, 5))
    stem = nn.Conv2d(3, width, 3, rng.choice((1, 2)), 1)
    net: nn.Module = _named(_Images, rng)(stem, blocks, nn.Linear(width, classes))
    return net
