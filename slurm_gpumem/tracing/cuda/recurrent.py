"""cuDNN's recurrent networks as one operator: unrolled on meta tensors, an LSTM takes minutes.

Forward allocates the output, the last states, a workspace and a reserve for the backward pass; backward the
gradients of input and states, then those of all weights in one buffer, each together with a workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.recurrent_sizes import GATES, Network

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder

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
