"""LSTMCell and GRUCell as on CUDA: two products without their biases, then one fused kernel.

The kernel's derivative keeps both products and a workspace of gates (PyTorch's derivatives.yaml keeps what
either of its two backward formulas needs).
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.memo import like

aten = torch.ops.aten
_GRU_KEPT = 5
"""Numbers that the fused GRU keeps for each hidden one: three gates, the state before, a product."""


def lstm_cell(
    data: Tensor,
    state: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Optional[Tensor] = None,
    b_hh: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """New hidden state and cell."""
    hidden, cell = state
    inputs, recurrent = torch.matmul(data, w_ih.t()), torch.matmul(hidden, w_hh.t())
    new, after, _ = aten._thnn_fused_lstm_cell(inputs, recurrent, cell, b_ih, b_hh)
    return new, after


def gru_cell(
    data: Tensor,
    hidden: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Optional[Tensor] = None,
    b_hh: Optional[Tensor] = None,
) -> Tensor:
    """New hidden state."""
    inputs, recurrent = torch.matmul(data, w_ih.t()), torch.matmul(hidden, w_hh.t())
    return _Gru.apply(inputs, recurrent, hidden, b_ih, b_hh)  # type: ignore[no-any-return]


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        recurrent: Tensor,
        hidden: Tensor,
        b_ih: Optional[Tensor],
        b_hh: Optional[Tensor],
    ) -> Tensor:
        options: Dict[str, Any] = {"dtype": hidden.dtype, "device": hidden.device}
        workspace = torch.empty(hidden.shape[0], hidden.shape[1] * _GRU_KEPT, **options)
        new = like(hidden)
        ctx.save_for_backward(inputs, recurrent, hidden, workspace)
        ctx.biased = b_ih is not None
        return new

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, recurrent, hidden, _ = ctx.saved_tensors
        into, back, before = like(inputs), like(recurrent), like(hidden)
        bias = (into.sum(0), back.sum(0)) if ctx.biased else (None, None)
        return into, back, before, *bias
