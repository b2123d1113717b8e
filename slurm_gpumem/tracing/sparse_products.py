"""Products with a sparse matrix (graphs): meta tensors do not support them; on CUDA the result is dense."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.fast import call

aten = torch.ops.aten


def parts_of(tensor: Tensor) -> List[Tensor]:
    """The dense tensors that a sparse one is made of; none for layouts that are not known here."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout == torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return []


def sparse_on_meta(tensor: Tensor) -> Tensor:
    """A sparse tensor without its values; a layout that is not known here becomes a dense one."""
    parts = [torch.empty(part.shape, dtype=part.dtype, device="meta") for part in parts_of(tensor)]
    if tensor.layout == torch.sparse_coo:
        made = torch.sparse_coo_tensor(parts[0], parts[1], tensor.shape, check_invariants=False)
        return made._coalesced_(tensor.is_coalesced())
    if tensor.layout == torch.sparse_csr:
        rows, columns, values = parts
        return torch.sparse_csr_tensor(rows, columns, values, tensor.shape, check_invariants=False)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _sparse(*tensors: Any) -> bool:
    return any(
        isinstance(t, Tensor) and t.device.type == "meta" and t.layout != torch.strided for t in tensors
    )


def _product(shape_of: Callable[[Any], Tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    def handler(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = shape_of(args)
        if not _sparse(first, second):
            return call(func, args, kwargs)
        width = () if second.dim() == 1 else (second.shape[-1],)
        dense = second if second.layout == torch.strided else first
        return torch.empty((first.shape[0], *width), dtype=dense.dtype, device=dense.device)

    return handler


def _copy(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A sparse gradient that is accumulated: meta tensors would lose its entries."""
    return sparse_on_meta(args[0]) if _sparse(args[0]) else func(*args, **kwargs)


def _coalesced(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Entries in order, and no place twice: how many differ is not known, so all of them."""
    if not _sparse(args[0]):
        return func(*args, **kwargs)
    name, count = func._schema.name, int(args[0]._nnz())
    scratch = [recorder.take(count * _INDEX, name) for _ in range(3)]
    result = sparse_on_meta(args[0])._coalesced_(True)
    recorder.note(result, name)
    for number in reversed(scratch):
        recorder.drop(number)
    return result


def _masked(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A dense tensor's values at the places of a sparse one."""
    return sparse_on_meta(args[1]) if _sparse(args[1]) else func(*args, **kwargs)


_INDEX = 8
_FIRST = _product(lambda args: (args[0], args[1]))
_AFTER_BIAS = _product(lambda args: (args[1], args[2]))
SPARSE_PRODUCTS: Dict[Any, Callable[..., Any]] = {
    aten.mm.default: _FIRST,
    aten.mv.default: _FIRST,
    aten._sparse_mm.default: _FIRST,
    aten.addmm.default: _AFTER_BIAS,
    aten._sparse_addmm.default: _AFTER_BIAS,
    aten.clone.default: _copy,
    aten._coalesce.default: _coalesced,
    aten.sparse_mask.default: _masked,
}
