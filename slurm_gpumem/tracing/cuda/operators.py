"""Operators that behave differently on CUDA than on meta tensors: workspaces, order, in-place work."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.attention import ATTENTION
from slurm_gpumem.tracing.cuda.convolutions import CONVOLUTIONS
from slurm_gpumem.tracing.cuda.layouts import COPYING, channels_last, copies, cudnn_normalizes, laid_out
from slurm_gpumem.tracing.cuda.library_workspaces import FOURIER, SOLVERS
from slurm_gpumem.tracing.cuda.reductions import SUMS
from slurm_gpumem.tracing.cuda.scratch import SCRATCH, sorted_sum
from slurm_gpumem.tracing.cuda.sparse_products import SPARSE_PRODUCTS, is_sparse, sparse_sum
from slurm_gpumem.tracing.engine.memo import NOT_PLAIN, arithmetic, call, like, on_meta
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten
MATMULS = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::mv",
    "aten::addmv",
    "aten::dot",
    "aten::vdot",
    "aten::_euclidean_dist",
    "aten::_addmm_activation",
    "aten::linalg_solve_triangular",
    "aten::triangular_solve",
    "aten::linalg_lu_solve",
}
"""Operators that take a handle of cuBLAS, and with the first one its workspace."""


def _add(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The engine sums gradients in place; under a dispatch mode it assumes that it must not."""
    first, second = args[:2]
    if is_sparse([first]) and is_sparse([second]) and first.layout == second.layout == torch.sparse_coo:
        return sparse_sum(first, second)
    if (
        recorder.phase == "backward"
        and not torch.is_grad_enabled()
        and not kwargs
        and isinstance(second, Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and owned_alone(first)
    ):
        return first
    if _bias_of_product(recorder, first, second):
        return aten.alias(first)
    result = arithmetic(args, kwargs) if on_meta(args) else NOT_PLAIN
    return func(*args, **kwargs) if result is NOT_PLAIN else result


def _into_zeros(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Derivatives of selections write into fresh zeros; under a dispatch mode they copy them first."""
    first = args[0]
    if recorder.phase == "backward" and not torch.is_grad_enabled() and on_meta(args):
        block = recorder.block_of(first)
        if block is not None and block.operator in _ZEROS:
            return first
    return func(*args, **kwargs)


def _index_put(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Sums at indices (the derivative of a selection): sorted indices, and values in one piece."""
    data, indices, values = args[:3]
    sums = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    made = sorted_sum(recorder, func._schema.name, data, indices, values) if sums and on_meta(args) else []
    result = _into_zeros(recorder, func, args, kwargs)
    if made:
        recorder.note(result, func._schema.name)
    for number in reversed(made):
        recorder.drop(number)
    return result


def _bias_of_product(recorder: Recording, first: Any, second: Any) -> bool:
    """A linear layer over a non-contiguous tensor adds its bias to the product in place."""
    if not isinstance(second, Tensor) or second.dim() != 1 or not second.is_leaf or first.dim() < 2:
        return False
    block = recorder.block_of(first)
    return block is not None and block.operator == "aten::mm" and first.shape[-1] == second.shape[0]


def _dropout(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The mask is allocated before the result."""
    data = args[0]
    mask = torch.empty(data.shape, dtype=torch.bool, device=data.device)
    recorder.note(mask, "aten::native_dropout")
    return like(data), mask


def _safe_softmax(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Fully masked rows are found with a mask of the whole tensor."""
    result = func(*args, **kwargs)
    recorder.note(result, "aten::_safe_softmax")
    mask = recorder.take(result.numel(), "aten::_safe_softmax")
    rows = recorder.take(result.numel() // max(int(result.shape[-1]), 1), "aten::_safe_softmax")
    recorder.workspace(result.element_size(), "aten::_safe_softmax")
    recorder.drop(rows)
    recorder.drop(mask)
    return result


def _softmax_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The product of gradient and output is alive at the same time as the result, and copies of both."""
    gradient, output = args[:2]
    name = func._schema.name
    made = copies(recorder, name, [output])
    result = call(func, args, kwargs)
    recorder.note(result, name)
    made = [*copies(recorder, name, [gradient]), *made]
    recorder.workspace(gradient.numel() * max(gradient.element_size(), output.element_size()), name)
    for number in made:
        recorder.drop(number)
    return result


def _batch_norm_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """cuDNN needs the gradient in the input's layout; PyTorch's own kernel, for bfloat16, takes any."""
    gradient, data, weight = args[:3]
    name = func._schema.name
    made, last = [], channels_last(data)
    if cudnn_normalizes(data, weight):
        made = copies(recorder, name, [gradient], last)
    first, *rest = call(func, args, kwargs)
    result = (None if first is None else laid_out(first, last), *rest)
    recorder.note_result(result, name)
    for number in made:
        recorder.drop(number)
    return result


def _where(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A condition of bytes is made one of truths first, which a meta kernel does not."""
    condition = args[0]
    if condition.dtype != torch.uint8 or condition.device.type != "meta":
        return call(func, args, kwargs)
    name = func._schema.name
    made = recorder.take(condition.numel(), name)
    result = call(func, (torch.empty_like(condition, dtype=torch.bool), *args[1:]), kwargs)
    recorder.note(result, name)
    recorder.drop(made)
    return result


def _dirichlet(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Meta tensors have no kernel for it; CUDA draws from a gamma distribution first."""
    data = args[0]
    if data.device.type != "meta":
        return func(*args, **kwargs)
    name = func._schema.name
    drawn = (
        recorder.take(data.numel() * data.element_size(), name) if name.endswith("sample_dirichlet") else None
    )
    result = torch.empty_like(data, memory_format=torch.contiguous_format)
    recorder.note(result, name)
    if drawn is not None:
        recorder.drop(drawn)
    return result


def owned_alone(tensor: Tensor) -> bool:
    """Whether only the engine holds a tensor that it passed to an operator."""
    count, shared = tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return bool(count <= _ALONE[0] and shared <= _ALONE[1])


_ALONE = (4, 2)
_ZEROS = {"aten::new_zeros", "aten::zeros", "aten::zeros_like"}

HANDLERS: Dict[Any, Callable[..., Any]] = {
    **ATTENTION,
    **SPARSE_PRODUCTS,
    **SOLVERS,
    **SCRATCH,
    **FOURIER,
    **CONVOLUTIONS,
    **COPYING,
    **SUMS,
    aten.scatter.src: _into_zeros,
    aten.scatter.value: _into_zeros,
    aten.scatter_add.default: _into_zeros,
    aten.index_add.default: _into_zeros,
    aten.index_put.default: _index_put,
    aten.add.Tensor: _add,
    aten.where.self: _where,
    aten.native_dropout.default: _dropout,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten._sample_dirichlet.default: _dirichlet,
    aten._dirichlet_grad.default: _dirichlet,
    aten._softmax_backward_data.default: _softmax_backward,
}
