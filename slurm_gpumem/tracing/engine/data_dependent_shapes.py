"""Operators whose result's size depends on values: `nonzero`, `x[mask]`, `bincount`, `unique`, `nms`.

Exact where the values are known. Where they are not, a mask over choices counts with its share
(`unknown_values`), and anything else with the largest result that it may have.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.memo import overloads
from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.tracing.engine.unknown_values import choices_of, mark_index, rows_of, share_of
from slurm_gpumem.tracing.engine.values import compute, give, value_of

aten = torch.ops.aten
_INDEX_BYTES = 8
_PAIRS_IN_A_NUMBER = 64
_AT_MOST = "_gpumem_at_most"
"""Marks a selection that was taken at its largest."""
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_MASKS = (torch.bool, torch.uint8)
"""Types of masks: bytes are those of older code, and CUDA takes them."""


def sized_by_value(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The result at its size, or at the size that it has on average, or at its largest."""
    if args[0].device.type != "meta":
        return func(*args, **kwargs)
    result = compute(func, args, kwargs)
    if result is not None:
        return result
    name = func._schema.name[6:]
    mask = args[1] if name == "masked_select" else args[0]
    known = (mask if mask.device.type == "cpu" else value_of(mask)) if name == "masked_select" else None
    if known is not None:
        # Of data that nobody knows, by a mask that is known; every element of it counts for as many.
        whole = math.prod(torch.broadcast_shapes(args[0].shape, mask.shape))
        return _shaped(name, args, int(known.count_nonzero()) * whole // max(1, known.numel()))
    if name in ("nonzero", "masked_select") and share_of(mask) is not None:
        recorder.assume_equal_shares(f"the result of {name}")
        return _shaped(name, args, rows_of(mask, recorder.shares))
    if name == "bincount":
        return _counts(recorder, args, kwargs)
    if name == "_unique2" and choices_of(args[0]):
        return _all_choices(recorder, args, kwargs)
    recorder.assume(f"the size of {name}'s result depends on data; took the largest")
    result = _largest(name, args)
    if name == "masked_select":
        setattr(result, _AT_MOST, True)
    return result


def selected(func: Any, args: Any, kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Dict[str, Any]]]:
    """The arguments of a view that tells how many elements a selection has; None of anything else.

    A square that is cut out of every image is selected by a mask, and its view has the right size. A gradient
    through it would have the size of the selection, so there it stays an error.
    """
    if func not in _VIEWS or not getattr(args[0], _AT_MOST, False) or args[0].requires_grad:
        return None
    count = math.prod(args[1])
    return ((args[0][:count], *args[1:]), kwargs) if 0 < count < args[0].numel() else None


def index(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`tensor[mask]`: as many rows as the mask has true values, its share of them, or all rows."""
    data, indices = args[:2]
    if data.device.type != "meta" or not any(i is not None and i.dtype in _MASKS for i in indices):
        return func(*args, **kwargs)
    plain: List[Optional[Tensor]] = []
    for item in indices:
        if item is None or item.dtype not in _MASKS:
            plain.append(item)
            continue
        known = item if item.device.type == "cpu" else value_of(item)
        if known is not None:
            rows = int(known.count_nonzero())
        elif share_of(item) is not None:
            recorder.assume_equal_shares("a masked selection")
            rows = rows_of(item, recorder.shares)
        else:
            recorder.assume("the size of a masked selection depends on data; took the largest")
            rows = item.numel()
        plain += [torch.empty(rows, dtype=torch.int64, device="meta") for _ in range(item.dim())]
    return func(data, plain, **kwargs)


def to_sparse(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A dense matrix (of a graph) made sparse: as many entries as are known not to be zero, or all."""
    data = args[0]
    dense = args[1] if len(args) > 1 else kwargs.get("sparse_dim")
    if data.device.type != "meta" or dense not in (None, data.dim()) or kwargs.get("layout") is not None:
        return func(*args, **kwargs)
    known = value_of(data)
    if known is None:
        recorder.assume("how many entries of a matrix are not zero depends on data; took all")
    count = data.numel() if known is None else int(known.count_nonzero())
    places = torch.empty((data.dim(), count), dtype=torch.int64, device=data.device)
    made = torch.sparse_coo_tensor(places, data.new_empty(count), data.shape, check_invariants=False)
    return made._coalesced_(True)


def boxes_kept(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """torchvision's `nms`: which boxes are left when those that overlap are gone; at most all of them.

    It has the boxes in the order of their scores, and a bit for each pair of them, while it runs.
    """
    boxes = args[0]
    if boxes.device.type != "meta":
        return func(*args, **kwargs)
    recorder.assume("how many boxes nms keeps depends on data; took all")
    count, name = int(boxes.shape[0]), func._schema.name
    pairs = count * -(-count // _PAIRS_IN_A_NUMBER) * _INDEX_BYTES
    sizes = (count * _INDEX_BYTES, boxes.numel() * boxes.element_size(), count * _INDEX_BYTES, pairs)
    taken = [recorder.take(size, name) for size in sizes if size]
    result = torch.empty(count, dtype=torch.int64, device=boxes.device)
    recorder.note_result(result, name)
    for number in taken:
        recorder.drop(number)
    return result


def _counts(recorder: Recording, args: Any, kwargs: Any) -> Tensor:
    """How often each number occurs: equally often, where code says how many numbers there are."""
    data = args[0]
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    given = int(args[2] if len(args) > 2 else kwargs.get("minlength", 0)) or choices_of(data) or data.numel()
    dtype = torch.int64 if weights is None else weights.dtype
    result = torch.empty(given, dtype=dtype, device=data.device)
    recorder.assume_equal_shares("bincount")
    if weights is None:
        give(result, torch.tensor(recorder.shares.parts(data.numel(), given), dtype=dtype))
    return result


def _all_choices(recorder: Recording, args: Any, kwargs: Any) -> Any:
    """`unique` of an index: code that goes through its experts this way meets each of them once."""
    data = args[0]
    choices = choices_of(data) or 1
    count = min(choices, data.numel())
    inverse, counts = (
        bool(args[at] if len(args) > at else kwargs.get(name, False))
        for at, name in ((2, "return_inverse"), (3, "return_counts"))
    )
    recorder.assume("every choice of an index is taken as chosen at least once")
    values = data.new_empty(count)
    where = torch.empty(data.shape if inverse else 0, dtype=torch.int64, device=data.device)
    times = torch.empty(count if counts else 0, dtype=torch.int64, device=data.device)
    if count == choices:
        give(values, torch.arange(count, dtype=data.dtype))
    mark_index(values, choices)
    if inverse:
        mark_index(where, count)
    if counts:
        give(times, torch.tensor(recorder.shares.parts(data.numel(), count)))
    return values, where, times


def _shaped(name: str, args: Any, count: int) -> Tensor:
    data: Tensor = args[0]
    if name == "nonzero":
        return torch.empty((count, data.dim()), dtype=torch.int64, device=data.device)
    return data.new_empty(count)


def _largest(name: str, args: Any) -> Any:
    data = args[0]
    count = data.numel()
    whole: Dict[str, Any] = {"dtype": torch.int64, "device": data.device}
    if name in ("nonzero", "masked_select"):
        return _shaped(name, args, count)
    if name == "repeat_interleave":
        return torch.empty(count, **whole)
    # unique and similar: values, inverse, counts
    return (
        data.new_empty(count),
        torch.empty(count, **whole),
        torch.empty(count, **whole),
    )


_SIZED = ("nonzero", "masked_select", "bincount", "_unique2", "unique_consecutive", "unique_dim")
SIZED = {
    **dict.fromkeys(overloads(*_SIZED), sized_by_value),
    aten.repeat_interleave.Tensor: sized_by_value,
    aten.index.Tensor: index,
    **dict.fromkeys(overloads("_to_sparse"), to_sparse),
}
BY_NAME = {"torchvision::nms": boxes_kept}
"""Operators of packages that may not be there, by their names."""
