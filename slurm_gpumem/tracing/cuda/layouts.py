"""Memory layout of tensors, and which CUDA operators copy one that has gaps or another order."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.reductions import long_sum
from slurm_gpumem.tracing.engine.memo import call
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten


def channels_last(tensor: Tensor) -> bool:
    """Whether PyTorch would treat this layout as channels last, with or without gaps."""
    if tensor.dim() == 3:
        # 1-D convolutions run as 2-D ones over images of one row.
        tensor = tensor.unsqueeze(2)
    if tensor.dim() != 4 or tensor.is_contiguous() or tensor.stride(1) == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        stride, size = tensor.stride(dim), tensor.shape[dim]
        if size == 0 or stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * size if size > 1 else stride
    return True


def lies_so(tensor: Tensor, last: bool) -> bool:
    """Whether a tensor has no gaps in the given order of dimensions."""
    if last and tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.is_contiguous()


def laid_out(tensor: Tensor, last: bool) -> Tensor:
    """A result with CUDA's layout: meta kernels make most of them contiguous."""
    if not last or tensor.dim() != 4 or tensor.device.type != "meta":
        return tensor
    return torch.empty(
        tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last
    )


def cudnn_normalizes(data: Tensor, weight: Optional[Tensor]) -> bool:
    """Whether batch normalization uses cuDNN: not for bfloat16, nor for half precision with half weights."""
    if weight is None or torch.bfloat16 in (data.dtype, weight.dtype):
        return False
    return data.dtype != torch.float16 or weight.dtype == torch.float32


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel()) * tensor.element_size()


def copies(recorder: Recording, name: str, tensors: Sequence[Tensor], last: bool = False) -> List[int]:
    """Blocks for copies of those whose layout an operator cannot use; the caller drops them."""
    return [recorder.take(size_of(tensor), name) for tensor in tensors if not lies_so(tensor, last)]


def copying(
    *places: int, either: bool = True, then: Optional[Callable[..., Any]] = None
) -> Callable[..., Any]:
    """A handler for an operator that copies tensors with gaps while it runs.

    `either`: it accepts channels-last tensors without a copy.
    """

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name
        tensors = [args[place] for place in places]
        last = either and any(channels_last(tensor) for tensor in tensors)
        made = copies(recorder, name, tensors, last)
        result = call(func, args, kwargs) if then is None else then(recorder, func, args, kwargs)
        recorder.note_result(result, name)
        for number in made:
            recorder.drop(number)
        return result

    return handler


def copying_after(
    gradient: int, *others: int, then: Optional[Callable[..., Any]] = None
) -> Callable[..., Any]:
    """A handler for a backward operator that copies its gradient only after its results have been made."""

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name
        made = copies(recorder, name, [args[place] for place in others])
        result = call(func, args, kwargs)
        recorder.note_result(result, name)
        made = [*copies(recorder, name, [args[gradient]]), *made]
        if then is not None:
            then(recorder, name, args, result)
        for number in made:
            recorder.drop(number)
        return result

    return handler


def _softmax(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Only CUDA converts half to single precision inside the kernel."""
    data, _, widened = args
    if not widened or data.device.type != "meta":
        return func(*args, **kwargs)
    return torch.empty(data.shape, dtype=torch.float32, device=data.device)


def _loss_of_pictures_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient is contiguous, however the scores lie."""
    result = func(*args, **kwargs)
    if result.device.type != "meta" or result.is_contiguous():
        return result
    return torch.empty(result.shape, dtype=result.dtype, device=result.device)


def _tall_layer_norm_backward(recorder: Recording, name: str, args: Any, result: Any) -> None:
    """Gradients of weight and bias over very many rows: 32 rows per block, and then the sum of the blocks.

    Decided for the traced batch: at a batch beyond the threshold these few MiB are wrong.
    """
    columns = prod(int(size) for size in args[2])
    rows = args[1].numel() // max(columns, 1)
    if rows <= _TALL or columns >= _NARROW:
        return
    blocks = min(-(-rows // _ROWS_OF_A_BLOCK), _MOST_BLOCKS // -(-columns // _COLUMNS_OF_A_BLOCK))
    parameters = [gradient for gradient in result[1:] if gradient is not None]
    parts = [recorder.take(blocks * size_of(gradient), name) for gradient in parameters]
    for gradient in parameters:
        total = recorder.take(size_of(gradient), name)
        recorder.workspace(0, name, long_sum(blocks, columns, columns))
        recorder.drop(total)
    for part in reversed(parts):
        recorder.drop(part)


_ROWS_OF_A_BLOCK = _COLUMNS_OF_A_BLOCK = 32
_MOST_BLOCKS = 32 << 10
_TALL, _NARROW = 64 << 10, _COLUMNS_OF_A_BLOCK * 132 // 2
"""Rows and columns of such a layer norm, on a GPU with 132 multiprocessors."""

COPYING: Dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: copying(0, either=False),
    aten.native_layer_norm_backward.default: copying_after(0, 1, then=_tall_layer_norm_backward),
    aten._softmax.default: copying(0, either=False, then=_softmax),
    aten._log_softmax.default: copying(0, either=False, then=_softmax),
    aten._log_softmax_backward_data.default: copying_after(0, 1),
    aten.nll_loss2d_backward.default: _loss_of_pictures_backward,
    aten.max_pool2d_with_indices.default: copying(0),
    aten.max_pool2d_with_indices_backward.default: copying(0, 1),
    aten.avg_pool2d.default: copying(0),
    aten.avg_pool2d_backward.default: copying(0, 1),
    aten.max_pool3d_with_indices.default: copying(0),
    aten.max_pool3d_with_indices_backward.default: copying(0, 1),
    aten.upsample_nearest2d.default: copying(0),
    aten.upsample_nearest2d_backward.default: copying_after(0),
    aten.upsample_bilinear2d.default: copying(0),
    aten.upsample_bilinear2d_backward.default: copying_after(0),
    aten.upsample_bicubic2d_backward.default: copying_after(0),
    aten.upsample_trilinear3d_backward.default: copying_after(0),
    aten.reflection_pad2d_backward.default: copying(0),
}
