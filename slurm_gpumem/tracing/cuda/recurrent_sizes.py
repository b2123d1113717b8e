"""How much memory cuDNN needs for a recurrent network.

Derived from 426 networks measured on an H200 with cuDNN 9.19 (lab/data/ground-truth);
the reserve is exact there. Sizes of the workspace are numbers per token and per row of the batch. Those 426
had inputs narrower than their states and no packed sequences: what wider inputs and packed LSTMs need comes
from 107 others, most of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
"""Numbers that the forward pass keeps for each cell, besides the output of inner layers."""
_SMALL = {
    "lstm": (192, 128),
    "gru": (192, 128),
    "rnn_tanh": (384, 256),
    "rnn_relu": (384, 256),
}
"""Hidden sizes up to which PyTorch requests the persistent kernel of small networks (forward, backward)."""
_LEAST = 256
_STREAM = 8 << 20
"""Each layer and direction multiplies matrices in its own workspace."""

_ROWS: Dict[Tuple[bool, int, bool], int] = {
    # LSTM?, directions, small: numbers per row of the batch and hidden unit
    (True, 1, False): 10,
    (True, 1, True): 8,
    (True, 2, False): 12,
    (True, 2, True): 9,
    (False, 1, False): 5,
    (False, 1, True): 6,
    (False, 2, False): 7,
    (False, 2, True): 7,
}


_LESS_PACKED = 4
"""Of those, that a packed LSTM does not need."""


@dataclass(frozen=True)
class Network:
    """What determines the sizes."""

    mode: str
    layers: int
    directions: int
    hidden: int
    dropout: float
    train: bool
    rows: int
    tokens: int
    """Steps of all sequences together."""
    features: int
    itemsize: int
    packed: bool = False
    """Sequences of different lengths, one after the other."""
    flat: bool = True
    """Whether the weights are in one buffer."""

    def reserve_bytes(self) -> int:
        """What the forward pass keeps for the backward pass."""
        if not self.train:
            return 0
        kept = self.layers * (_KEPT[self.mode] + 1) - 1
        cells = self.tokens * self.directions * self.hidden
        size = _LEAST + cells * kept * self.itemsize
        if self.layers > 1 and self.dropout > 0:
            size += (self.layers - 1) * cells * self.directions // 8  # one bit per element
        return size

    def workspace_bytes(self, *, backward: bool) -> int:
        """What a pass needs temporarily."""
        small = self._small(backward)
        count = self.layers * self.directions
        rows = _ROWS[(self.mode == "lstm", self.directions, small)] * count * self.hidden
        if self.packed and self.mode == "lstm":
            rows -= _LESS_PACKED * count * self.hidden
        return (
            _STREAM * count
            + _LEAST
            + self.itemsize * self._matrices()
            + self.rows * (8 + self.itemsize * rows)
            + self.itemsize * self.tokens * self._token(small)
        )

    def _small(self, backward: bool) -> bool:
        return not self.packed and self.flat and self.hidden <= _SMALL[self.mode][backward]

    def _matrices(self) -> int:
        """Numbers in all weight matrices."""
        wide = self.directions * self.hidden
        inputs = self.features + (self.layers - 1) * wide
        return GATES[self.mode] * self.hidden * self.directions * (inputs + self.layers * self.hidden)

    def _token(self, small: bool) -> int:
        """Numbers in the workspace for each token: another kernel's where the input is much wider."""
        hidden, features, directions = self.hidden, self.features, self.directions
        if self.packed and self.mode == "lstm":
            return max(12 * hidden, 4 * features + 2 * hidden) if directions == 2 else self._packed_one_way()
        wide = 0
        if self.mode in ("lstm", "gru"):
            states = (15 if directions == 1 else 18) if small else (3 if self.layers == 1 else 2) * directions
            wide = states * hidden + 3 * directions * features
        return max(self._narrow(small), wide)

    def _packed_one_way(self) -> int:
        dropped = self.hidden if self.layers > 1 and self.dropout > 0 else 0
        return max(4 * self.hidden, self.features + self.hidden) + dropped

    def _narrow(self, small: bool) -> int:
        """With an input no wider than the states."""
        hidden, features = self.hidden, self.features
        deep, both = self.layers > 1, self.directions == 2
        dropped = hidden if deep and self.dropout > 0 and not both else 0
        if self.mode == "lstm":
            cells = (30 if both else 21) if small else (14 if both else 5)
            return cells * hidden + features + dropped
        if small:
            cells = {"gru": (18, 24)}.get(self.mode, (13, 19))[both]
            return cells * hidden + 2 * features + (self.directions * hidden if deep else 0)
        if self.mode == "gru":
            if both:
                return 12 * hidden + (2 if deep else 1) * features
            return 4 * hidden + (1 if deep else 2) * features + dropped
        if both:
            return (12 if deep else 10) * hidden + 2 * features
        return (3 if deep else 4) * hidden + 2 * features
