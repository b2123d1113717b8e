"""Operators whose CUDA kernels use scratch memory, or leave results in oversized storages."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.layouts import copying, size_of
from slurm_gpumem.tracing.engine.memo import call
from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.tracing.engine.values import value_of

aten = torch.ops.aten
_ATOMIC_TOKENS = 3072
"""Up to this number of tokens an embedding's gradient is summed without sorting them."""
_TOKENS_PER_PART = 10
_INDEX = 8
_SMALL_SORT = 4096
"""Up to this number of elements a row is sorted in place."""
_SINGLE_SORT, _FEW_ROWS = 1_000_000, 128
"""Rows from this length on are sorted one by one; shorter ones all together, twice where they are few."""


def _oversized(shape: Tuple[int, ...], numel: int, like: Tensor) -> Tensor:
    """A tensor at the beginning of a larger storage."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(int(size), 1)
    storage = torch.empty(max(numel, step), dtype=like.dtype, device=like.device)
    return storage.as_strided(shape, strides[::-1])


def _mean_of_differences(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The loss is one number in a storage that was made for all of them."""
    data, target = args[:2]
    reduction = args[2] if len(args) > 2 else kwargs.get("reduction", 1)
    result = func(*args, **kwargs)
    if reduction == 0 or data.device.type != "meta":
        return result
    numel = max(int(data.numel()), int(target.numel()))
    result = _oversized((), numel, result)
    recorder.note(result, func._schema.name)
    recorder.workspace(numel * result.element_size(), func._schema.name)
    return result


def _binary_cross_entropy(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Each element's loss and its logarithm, before they are summed."""
    name = func._schema.name
    losses = [recorder.take(size_of(args[0]), name) for _ in range(2)]
    result = func(*args, **kwargs)
    recorder.note(result, name)
    for number in losses:
        recorder.drop(number)
    return result


def _logsumexp(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    name = func._schema.name
    recorder.note(result, name)
    largest = recorder.take(size_of(result), name)
    powers = recorder.take(size_of(args[0]), name)
    recorder.drop(powers)
    recorder.drop(largest)
    return result


def _roll(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """One dimension after the other."""
    data = args[0]
    dims = args[2] if len(args) > 2 else kwargs.get("dims", ())
    between = [recorder.take(size_of(data), "aten::roll") for _ in dims[1:]]
    result = func(*args, **kwargs)
    recorder.note(result, "aten::roll")
    for number in between:
        recorder.drop(number)
    return result


def _unfold(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A result as large as the input is allocated first, found too small and allocated again."""
    small = recorder.take(size_of(args[0]), "aten::im2col")
    result = func(*args, **kwargs)
    recorder.note(result, "aten::im2col")
    recorder.drop(small)
    return result


def _fold(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The result is in a storage as large as the input."""
    result = func(*args, **kwargs)
    if result.device.type != "meta" or result.numel() >= args[0].numel():
        return result
    return _oversized(tuple(result.shape), int(args[0].numel()), result)


def _sort(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Long rows are sorted beside their results (ATen's SortStable.cu): numbers, and where each was."""
    result, data, name = func(*args, **kwargs), args[0], func._schema.name
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    if data.device.type != "meta" or not data.dim() or data.shape[dim] <= _SMALL_SORT or not data.numel():
        return result
    recorder.note_result(result, name)
    count, length, size = int(data.numel()), int(data.shape[dim]), data.element_size()
    taken = (
        [] if data.stride(dim) == 1 else [recorder.take(count * each, name) for each in (size, size, _INDEX)]
    )
    beside = [_INDEX]
    if count == length or length >= _SINGLE_SORT:
        count = length
    elif count // length < _FEW_ROWS:
        beside = [_INDEX, _INDEX, size]
    taken += [recorder.take(count * each, name) for each in beside]
    recorder.workspace(count * (size + _INDEX), name)
    for number in reversed(taken):
        recorder.drop(number)
    return result


def _trilinear(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Of three factors the first two are multiplied first (`nn.Bilinear`; ATen's Linear.cpp).

    One place along the unrolled dimension after the other. What the third factor has too is summed later:
    the gradient of a bilinear layer's first input is, for a while, a matrix for each row.
    """
    name, sums = func._schema.name, set(args[6])
    unrolled = args[7] if len(args) > 7 else kwargs.get("unroll_dim", 1)
    factors = [_expanded(data, places) for data, places in zip(args[:3], args[3:6])]
    early = sums & set(args[5]) - {unrolled}
    places = [place for place in range(len(factors[0])) if place != unrolled and place not in early]
    result = func(*args, **kwargs)
    recorder.note(result, name)
    numbers = prod(max(factors[0][place], factors[1][place]) for place in places)
    product = recorder.take(numbers * result.element_size(), name)
    steps = 1 if unrolled in sums else max(1, *(factor[unrolled] for factor in factors))
    summed = recorder.take(size_of(result) // steps, name)
    recorder.drop(product)
    recorder.drop(summed)
    return result


def _expanded(data: Tensor, places: Any) -> List[int]:
    """Its sizes, with ones at these places."""
    sizes = [int(size) for size in data.shape]
    for place in sorted(places):
        sizes.insert(place, 1)
    return sizes


def _embedding_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    gradient, tokens, rows = args[:3]
    if int(tokens.numel()) <= _ATOMIC_TOKENS:
        return func(*args, **kwargs)
    return _sum_by_token(recorder, func, args, kwargs, (tokens, int(rows), int(gradient.shape[-1])))


def _bag_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    gradient, tokens, rows = (
        args[0],
        args[1],
        args[5 if "dense" in func._schema.name else 6],
    )
    return _sum_by_token(recorder, func, args, kwargs, (tokens, int(rows), int(gradient.shape[-1])))


def _sum_by_token(
    recorder: Recording, func: Any, args: Any, kwargs: Any, sizes: Tuple[Tensor, int, int]
) -> Any:
    """Tokens are sorted, and their gradients summed in parts before they are written."""
    tokens, rows, width = sizes
    count, name = int(tokens.numel()), func._schema.name
    ordered = [recorder.take(count * _INDEX, name) for _ in range(3)]
    recorder.workspace(count * 65 // 4 + 16895, name)
    recorder.drop(ordered.pop())
    result = func(*args, **kwargs)
    recorder.note(result, name)
    segments = min(count, rows)
    parts = -(-count // _TOKENS_PER_PART) + segments - 1
    ordered.append(recorder.take(count * _INDEX, name))
    ordered += [recorder.take(segments * _INDEX, name) for _ in range(2)]
    ordered.append(recorder.take(parts * _INDEX, name))
    # Sums of half-precision gradients are also in single precision; rows are padded to whole warps.
    recorder.workspace(parts * -(-width // 32) * 32 * 4, name)
    for number in reversed(ordered):
        recorder.drop(number)
    return result


def sorted_sum(recorder: Recording, name: str, data: Tensor, indices: Any, values: Tensor) -> List[int]:
    """Blocks of `index_put_` that sums, while it runs (ATen's index_put_with_sort_kernel).

    Values that lie apart, or are fewer than the places, are copied; so is the target where the indices are
    not of dimensions side by side. Indices are linear, sorted, and known by where they came from.
    """
    places = [number for number, index in enumerate(indices) if index is not None]
    found = [indices[number] for number in places]
    if not found or any(index.dtype in (torch.bool, torch.uint8) for index in found):
        return []
    count = prod(torch.broadcast_shapes(*(index.shape for index in found)))
    each = data.numel() // max(1, prod(data.shape[number] for number in places))
    made: List[int] = []
    if values.numel() < count * each or not values.is_contiguous():
        made.append(recorder.take(count * each * values.element_size(), name))
    if places != list(range(places[0], places[-1] + 1)) or not data.is_contiguous():
        made.append(recorder.take(size_of(data), name))
    return [*made, *(recorder.take(count * _INDEX, name) for _ in range(3))]


def _group_norm(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Scale and shift of each channel of each sample."""
    result = call(func, args, kwargs)
    name = func._schema.name
    recorder.note_result(result, name)
    if args[1] is not None or args[2] is not None:
        _per_channel(recorder, name, 2, args[0])
    return result


def _group_norm_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    result = call(func, args, kwargs)
    name = func._schema.name
    recorder.note_result(result, name)
    _per_channel(recorder, name, 2 if args[4] is None else 3, args[1])
    return result


def _per_channel(recorder: Recording, name: str, count: int, data: Tensor) -> None:
    """This many blocks with one number for each channel of each sample."""
    size = int(data.shape[0]) * int(data.shape[1]) * 4
    for number in reversed([recorder.take(size, name) for _ in range(count)]):
        recorder.drop(number)


def _grouped_product(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Products of groups of rows (mixtures of experts); meta tensors support them in bfloat16 only."""
    first, second = args[:2]
    if first.device.type != "meta":
        return func(*args, **kwargs)
    recorder.cublas("aten::bmm")
    ends = args[2] if len(args) > 2 else kwargs.get("offs")
    shape: Tuple[int, ...] = (first.shape[-2], second.shape[-1])
    if first.dim() == second.dim():
        groups = first.shape[0] if first.dim() == 3 else ends.shape[0]
        shape = (groups, *shape)
    return first.new_empty(shape)


def _ctc(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The loss of each sequence, and the table of all paths through it, which the backward pass needs."""
    scores, targets = args[:2]
    if scores.device.type != "meta":
        return func(*args, **kwargs)
    steps, rows = int(scores.shape[0]), int(scores.shape[1]) if scores.dim() > 2 else 1
    lengths = value_of(args[3]) if isinstance(args[3], Tensor) else torch.tensor(args[3])
    longest = int(targets.shape[-1]) if targets.dim() > 1 else -(-int(targets.numel()) // max(rows, 1))
    longest = longest if lengths is None else int(lengths.max())
    return scores.new_empty(rows), scores.new_empty(rows, steps, 2 * longest + 1)


def _ctc_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].device.type != "meta":
        return func(*args, **kwargs)
    result = torch.empty_like(args[1])
    ways = recorder.take(size_of(args[6]), "aten::_ctc_loss_backward")
    recorder.note(result, "aten::_ctc_loss_backward")
    recorder.drop(ways)
    return result


SCRATCH: Dict[Any, Callable[..., Any]] = {
    aten.mse_loss.default: _mean_of_differences,
    aten.smooth_l1_loss.default: _mean_of_differences,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy,
    aten.logsumexp.default: _logsumexp,
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten._ctc_loss_backward.default: _ctc_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
    aten.roll.default: _roll,
    aten._trilinear.default: _trilinear,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
    aten.im2col.default: copying(0, either=False, then=_unfold),
    aten.col2im.default: copying(0, either=False, then=_fold),
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.embedding_dense_backward.default: copying(0, either=False, then=_embedding_backward),
    aten._embedding_bag_dense_backward.default: _bag_backward,
    aten._embedding_bag_backward.default: _bag_backward,
}
if hasattr(aten, "_grouped_mm"):
    SCRATCH[aten._grouped_mm.default] = _grouped_product
