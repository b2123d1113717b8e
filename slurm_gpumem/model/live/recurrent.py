"""cuDNN's recurrent networks as one operator: unrolled on meta tensors, an LSTM takes minutes.

Forward allocates the output, the last states, a reserve for the backward pass and a workspace; backward the
gradients, those of all weights in one buffer, and a workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Network:
    """What decides the sizes."""

    mode: str
    layers: int
    directions: int
    hidden: int
    dropout: float
    train: bool
    length: int
    rows: int
    features: int
    itemsize: int

    @property
    def cells(self) -> int:
        """Steps of all layers and directions, for every row."""
        return self.layers * self.directions * self.length * self.rows * self.hidden

    def reserve_bytes(self) -> int:
        """What the forward pass keeps for the backward pass."""
        if not self.train:
            return 0
        gates = {"lstm": 6, "gru": 5}.get(self.mode, 1)
        kept = self.cells * gates * self.itemsize
        if self.layers > 1 and self.dropout > 0:
            kept += (self.layers - 1) * self.directions * self.length * self.rows * self.hidden
        return kept

    def workspace_bytes(self, *, backward: bool) -> int:
        """What a pass needs for a moment."""
        wide = self.length * self.rows * self.directions * self.hidden * self.itemsize
        return wide * GATES[self.mode] * (2 if backward else 1)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: Any, network: Network, data: Tensor, *others: Optional[Tensor]
    ) -> Tuple[Tensor, ...]:
        states, weights = others[:2], others[2:]
        options: Any = {"dtype": data.dtype, "device": data.device}
        wide = network.directions * network.hidden
        output = torch.empty(network.length, network.rows, wide, **options)
        shape = (network.layers * network.directions, network.rows, network.hidden)
        last = torch.empty(shape, **options)
        cell = torch.empty(shape if network.mode == "lstm" else (0,), **options)
        reserve = torch.empty(network.reserve_bytes(), dtype=torch.uint8, device=data.device)
        recorder.workspace(network.workspace_bytes(backward=False), "cudnn::rnn")
        note_kernels(recorder, network, data.dtype)
        ctx.save_for_backward(data, output, reserve, *(t for t in states if t is not None), *weights)
        ctx.recorder, ctx.network = recorder, network
        ctx.shapes = [None if t is None else t.shape for t in others]
        ctx.wanted = [t is not None and t.requires_grad for t in states]
        return output, last, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        data = ctx.saved_tensors[0]
        network: Network = ctx.network
        options: Any = {"dtype": data.dtype, "device": data.device}
        into = torch.empty(data.shape, **options)
        states = [torch.empty(shape, **options) if shape is not None else None for shape in ctx.shapes[:2]]
        ctx.recorder.workspace(network.workspace_bytes(backward=True), "cudnn::rnn")
        note_kernels(ctx.recorder, network, data.dtype)
        sizes = [shape.numel() for shape in ctx.shapes[2:]]
        flat = torch.empty(sum(sizes), **options)
        parts = [part.view(shape) for part, shape in zip(flat.split(sizes), ctx.shapes[2:])]
        kept = [state if wanted else None for state, wanted in zip(states, ctx.wanted)]
        return (None, None, into, *kept, *parts)


def note_kernels(recorder: Any, network: Network, dtype: torch.dtype) -> None:
    """A small product for each step, layer and direction; two of them on the way back."""
    wide = GATES[network.mode] * network.hidden
    for layer in range(network.layers):
        inputs = network.hidden * network.directions if layer else network.features
        flops = 2 * network.rows * wide * (inputs + network.hidden)
        count = network.length * network.directions * (2 if recorder.phase == "backward" else 1)
        sizes = (flops, wide, network.rows, network.hidden)
        moved = wide * (inputs + network.hidden) * network.itemsize
        name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
        recorder.kernels.add((recorder.phase, recorder.step), "rnn", sizes, moved, name, count)


def recurrent_kernels(recorder: Any) -> Dict[str, Callable[..., Any]]:
    """Kernels for meta tensors, by the operator's name."""

    def kernel(mode: str) -> Callable[..., Any]:
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
            states: List[Tensor] = list(hidden) if mode == "lstm" else [hidden]
            return _run(
                recorder,
                mode,
                data,
                states,
                list(weights),
                layers,
                dropout,
                train,
                bidirectional,
                batch_first,
            )

        return run

    return {f"{mode}.input": kernel(mode) for mode in GATES}


def _run(
    recorder: Any,
    mode: str,
    data: Tensor,
    states: List[Tensor],
    weights: List[Tensor],
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    recorder.uses_conv = True
    directions = 2 if bidirectional else 1
    half = recorder.half()
    if half is not None and data.dtype not in _HALF:
        # Autocast casts the input and the states, and all weights into one new buffer.
        data, states = data.to(half), [state.to(half) for state in states]
        weights = _flat_in_half(weights, half)
    if batch_first:
        data = data.transpose(0, 1)
    data = data.contiguous()
    network = Network(
        mode=mode,
        layers=layers,
        directions=directions,
        hidden=int(weights[0].shape[0]) // GATES[mode],
        dropout=dropout,
        train=train,
        length=int(data.shape[0]),
        rows=int(data.shape[1]),
        features=int(data.shape[2]),
        itemsize=data.element_size(),
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
        return (None, *(gradient.to(dtype) for gradient, dtype in zip(gradients, ctx.types)))


def _flat_in_half(weights: List[Tensor], half: torch.dtype) -> List[Tensor]:
    return list(_Flatten.apply(half, *weights))
