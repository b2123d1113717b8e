"""cuDNN's recurrent networks as one operator: unrolled on meta tensors, an LSTM takes minutes.

Forward allocates the output, the last states, a workspace and a reserve for the backward pass; backward the
gradients of input and states, then those of all weights in one buffer, each together with a workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder


# How much memory cuDNN needs for a recurrent network.
#
# Derived from 426 networks measured on an H200 with cuDNN 9.19 (lab/data/ground-truth); the reserve is exact
# there. Sizes of the workspace are numbers per token and per row of the batch. Those 426 had inputs narrower
# than their states and no packed sequences: what wider inputs and packed LSTMs need comes from 107 others,
# most of one layer.


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


_HALF = (torch.float16, torch.bfloat16)
NAME = "cudnn::rnn"
DROPOUT_STATE = 6488064
"""Random state for dropout between layers: one for each thread that an H200 runs."""


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        network: Network,
        data: Tensor,
        *others: Optional[Tensor],
    ) -> Tuple[Tensor, ...]:
        weights = others[2:]
        options: Any = {"dtype": data.dtype, "device": data.device}
        copy = data.contiguous()
        assert others[0] is not None
        wide = int(others[0].shape[-1])  # less than the hidden size if an LSTM projects it
        output = torch.empty(*data.shape[:-1], network.directions * wide, **options)
        count = network.layers * network.directions
        last = torch.empty(count, network.rows, wide, **options)
        shape = (count, network.rows, network.hidden) if network.mode == "lstm" else (0,)
        cell = torch.empty(shape, **options)
        kept = list(weights)
        if not network.flat:
            kept.append(torch.empty(sum(w.numel() for w in weights if w is not None), **options))
        workspace = recorder.take(network.workspace_bytes(backward=False), NAME)
        reserve = torch.empty(network.reserve_bytes(), dtype=torch.uint8, device=data.device)
        recorder.drop(workspace)
        del copy
        note_kernels(recorder, network, data.dtype)
        ctx.save_for_backward(data, output, last, cell, reserve, *kept)
        ctx.set_materialize_grads(False)
        ctx.recorder, ctx.network = recorder, network
        ctx.shapes = [None if t is None else t.shape for t in others]
        ctx.wanted = [t is not None and t.requires_grad for t in others[:2]]
        return output, last, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        data = ctx.saved_tensors[0]
        network: Network = ctx.network
        options: Any = {"dtype": data.dtype, "device": data.device}
        given = [shape for shape in ctx.shapes[:2] if shape is not None]
        zeros = [torch.empty(shape, **options) for shape in given]
        copy = data.contiguous()
        # Of a network with the batch first, the output's gradient lies the other way round.
        of_output = None if gradients[0] is None else gradients[0].contiguous()
        into = torch.empty(data.shape, **options)
        states = [torch.empty(shape, **options) for shape in given]
        workspace = network.workspace_bytes(backward=True)
        ctx.recorder.workspace(workspace, NAME)
        note_kernels(ctx.recorder, network, data.dtype)
        del copy, of_output
        copy = data.contiguous()
        sizes = [shape.numel() for shape in ctx.shapes[2:]]
        flat = torch.empty(sum(sizes), **options)
        ctx.recorder.workspace(workspace, NAME)
        del copy, zeros
        parts = [part.view(shape) for part, shape in zip(flat.split(sizes), ctx.shapes[2:])]
        kept = [state if wanted else None for state, wanted in zip([*states, None, None], ctx.wanted)]
        return (None, None, into, *kept, *parts)


def note_kernels(recorder: Recorder, network: Network, dtype: torch.dtype) -> None:
    """A small product for each step, layer and direction; two of them in the backward pass."""
    wide = GATES[network.mode] * network.hidden
    for layer in range(network.layers):
        inputs = network.hidden * network.directions if layer else network.features
        flops = 2 * network.rows * wide * (inputs + network.hidden)
        steps = -(-network.tokens // max(network.rows, 1))
        count = steps * network.directions * (2 if recorder.phase == "backward" else 1)
        sizes = (flops, wide, network.rows, network.hidden)
        moved = wide * (inputs + network.hidden) * network.itemsize
        name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
        recorder.kernels.add((recorder.phase, recorder.step), "rnn", sizes, moved, name, count)


def recurrent_kernels(recorder: Recorder) -> Dict[str, Callable[..., Any]]:
    """Kernels for meta tensors, by the operator's name."""

    def padded(mode: str) -> Callable[..., Any]:
        def run(
            data: Tensor,
            hidden: Any,
            weights: Sequence[Tensor],
            has_biases: bool,
            layers: int,
            dropout: float,
            train: bool,
            bidirectional: bool,
            batch_first: bool,
        ) -> Any:
            options = (layers, dropout, train, bidirectional)
            return _run(recorder, mode, data, hidden, weights, options, batch_first=batch_first)

        return run

    def packed(mode: str) -> Callable[..., Any]:
        def run(
            data: Tensor,
            batch_sizes: Tensor,
            hidden: Any,
            weights: Sequence[Tensor],
            has_biases: bool,
            layers: int,
            dropout: float,
            train: bool,
            bidirectional: bool,
        ) -> Any:
            return _run(
                recorder,
                mode,
                data,
                hidden,
                weights,
                (layers, dropout, train, bidirectional),
            )

        return run

    kernels = {f"{mode}.input": padded(mode) for mode in GATES}
    return {**kernels, **{f"{mode}.data": packed(mode) for mode in GATES}}


def _run(
    recorder: Recorder,
    mode: str,
    data: Tensor,
    hidden: Any,
    given: Sequence[Tensor],
    options: Tuple[int, float, bool, bool],
    *,
    batch_first: bool = False,
) -> Any:
    layers, dropout, train, bidirectional = options
    recorder.uses_conv = True
    states: List[Tensor] = list(hidden) if mode == "lstm" else [hidden]
    weights = list(given)
    if train and dropout > 0 and layers > 1:
        recorder.once("rnn dropout", DROPOUT_STATE, NAME)
    half = recorder.half()
    if half is not None and data.dtype not in _HALF:
        # Autocast casts all weights into one new buffer, then the states and the input.
        weights = list(_Flatten.apply(half, *weights))
        states = [state.to(half) for state in states]
        data = data.to(half)
        flat = True
    else:
        flat = weights[0].dtype != torch.bfloat16
    packed = data.dim() == 2
    if batch_first:
        data = data.transpose(0, 1)
    rows = int(states[0].shape[1])
    network = Network(
        mode=mode,
        layers=layers,
        directions=2 if bidirectional else 1,
        hidden=int(weights[0].shape[0]) // GATES[mode],
        dropout=dropout,
        train=train,
        rows=rows,
        tokens=int(data.shape[0]) if packed else int(data.shape[0]) * rows,
        features=int(data.shape[-1]),
        itemsize=data.element_size(),
        packed=packed,
        flat=flat,
    )
    first, second = (*states, None)[:2]
    output, last, cell = _Recurrent.apply(recorder, network, data, first, second, *weights)
    output = output.transpose(0, 1) if batch_first else output
    return (output, last, cell) if mode == "lstm" else (output, last)


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, half: torch.dtype, *weights: Tensor) -> Tuple[Tensor, ...]:
        ctx.types = [weight.dtype for weight in weights]
        sizes = [weight.numel() for weight in weights]
        flat = torch.empty(sum(sizes), dtype=half, device=weights[0].device)
        return tuple(part.view(w.shape) for part, w in zip(flat.split(sizes), weights))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        wide = [gradient.to(dtype) for gradient, dtype in zip(gradients[::-1], ctx.types[::-1])]
        return (None, *wide[::-1])
