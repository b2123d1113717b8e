"""Composite operators that take another path on CUDA than on meta tensors: dropout, attention, norms.

They are replaced for meta tensors only, and only during a trace.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.attention import attention
from slurm_gpumem.tracing.cuda.layouts import channels_last, cudnn_normalizes
from slurm_gpumem.tracing.cuda.recurrent import recurrent_kernels
from slurm_gpumem.tracing.engine.memo import like
from slurm_gpumem.tracing.engine.values import value_of

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder

# LSTMCell and GRUCell as on CUDA: two products without their biases, then one fused kernel. The kernel's
# derivative keeps both products and a workspace of gates (PyTorch's derivatives.yaml keeps what either of
# its two backward formulas needs).


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
    if b_ih is None or b_hh is None:  # what tells the sizes of this kernel's results needs some: a few KiB
        b_ih = b_hh = inputs.new_zeros(w_ih.shape[0])
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


_HALF = (torch.float16, torch.bfloat16)
aten = torch.ops.aten


def _dropout(data: Tensor, p: float, train: bool) -> Tensor:
    """One byte per element for the mask, as in CUDA's fused kernel."""
    if not train or p == 0 or data.numel() == 0:
        return data
    if p == 1:
        return data * torch.zeros((), dtype=data.dtype, device=data.device)
    result: Tensor = aten.native_dropout(data, p, train)[0]
    return result


def _softmax(data: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    """CUDA widens fp16 inside the kernel; bf16 is copied first."""
    if dtype == torch.float32 and data.dtype == torch.float16:
        return aten._softmax(data.contiguous(), dim, True)  # type: ignore[no-any-return]
    return aten._softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


def _log_softmax(data: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    if dtype == torch.float32 and data.dtype == torch.float16:
        return aten._log_softmax(data.contiguous(), dim, True)  # type: ignore[no-any-return]
    return aten._log_softmax(data if dtype is None else data.to(dtype), dim, False)  # type: ignore[no-any-return]


def _rms_norm(
    data: Tensor,
    shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
) -> Tensor:
    """CUDA has one kernel for it if input and weight have the same type."""
    if weight is not None and weight.dtype != data.dtype:
        wide = data.float() if data.dtype in _HALF else data
        dims = list(range(-len(shape), 0))
        scaled = wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + (eps or 0.0))
        return (scaled * weight).type_as(data)
    return _FusedRmsNorm.apply(data, shape, weight)  # type: ignore[no-any-return]


def _batch_norm(
    data: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    mean: Optional[Tensor],
    variance: Optional[Tensor],
    *rest: Any,
) -> Tensor:
    """cuDNN uses a copy of a non-contiguous input and keeps it for the backward pass."""
    if cudnn_normalizes(data, weight):
        last = data.dim() == 4 and channels_last(data)
        data = data.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    training, momentum, eps = rest[:3]
    result = aten.native_batch_norm(data, weight, bias, mean, variance, training, momentum, eps)
    return result[0]  # type: ignore[no-any-return]


def _group_norm(
    data: Tensor,
    groups: int,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """CUDA's kernel needs channels first: a copy of any other layout is kept for the backward pass."""
    rows, channels = int(data.shape[0]), int(data.shape[1])
    places = int(data.numel()) // max(rows * channels, 1)
    result = aten.native_group_norm(data.contiguous(), weight, bias, rows, channels, places, groups, eps)
    return result[0]  # type: ignore[no-any-return]


class _FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, shape: Sequence[int], weight: Optional[Tensor]) -> Tensor:
        result = like(data)
        rows = data.shape[: data.dim() - len(shape)]
        scale = torch.empty((*rows, *(1 for _ in shape)), dtype=torch.float32, device=data.device)
        ctx.save_for_backward(data, scale, *([] if weight is None else [weight]))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        data, _, *weights = ctx.saved_tensors
        into = like(data) if ctx.needs_input_grad[0] else None
        return into, None, like(weights[0]) if weights else None


def _one_hot(index: Tensor, classes: int = -1) -> Tensor:
    """CUDA writes ones into zeros."""
    if classes < 0:
        value = value_of(index)
        if value is None:
            raise RuntimeError(
                "one_hot without num_classes reads its input's largest number, which is not known: name it, "
                "one_hot(x, num_classes=10)"
            )
        classes = 1 + int(value.max())
    zeros = torch.zeros((*index.shape, classes), dtype=torch.int64, device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1)


def _ctc_loss(
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """CUDA takes targets and lengths from the CPU, too."""
    given = [one.to(scores.device) for one in (targets, lengths, target_lengths)]
    losses: Tensor = aten._ctc_loss(scores, *given, blank, zero_infinity)[0]
    if reduction == _MEAN:
        return (losses / given[2].clamp(min=1)).mean()
    return losses.sum() if reduction == _SUM else losses


_MEAN, _SUM = 1, 2
"""Reductions of losses, by PyTorch's numbers."""
_REPLACED = {
    "ctc_loss.Tensor": _ctc_loss,
    "one_hot": _one_hot,
    "lstm_cell": lstm_cell,
    "gru_cell": gru_cell,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _log_softmax,
    "scaled_dot_product_attention": attention,
}
_IN_PLACE = ("_fused_sgd_", "_fused_adagrad_")
"""Fused steps of optimizers that PyTorch knows on CUDA only; they allocate nothing."""


@contextmanager
def cuda_substitutes(recorder: Recorder) -> Iterator[None]:
    """Inside, meta tensors take CUDA's path through these operators."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, function in {**_REPLACED, **recurrent_kernels(recorder)}.items():
            library.impl(name, _kept(function), "AutogradMeta")
        for name in _without_meta(_IN_PLACE):
            library.impl(name, _kept(lambda *args, **kwargs: None), "Meta")
        yield
    finally:
        library._destroy()


def _without_meta(operators: Sequence[str]) -> Iterator[str]:
    """All overloads of these that this PyTorch has, and has no kernel for meta tensors of."""
    for operator in operators:
        packet = getattr(aten, operator, None)
        for overload in () if packet is None else packet.overloads():
            name = operator if overload == "default" else f"{operator}.{overload}"
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
                yield name


def _kept(function: Any) -> Any:
    """A new function each time: a registration is identified by its object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
