"""Products with a sparse matrix (graphs): meta tensors do not support them; on CUDA the result is dense."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.memo import call
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten


def parts_of(tensor: Tensor) -> List[Tensor]:
    """The dense tensors that a sparse one is made of; none for layouts that are not known here."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout == torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return []


def sparse_on_meta(tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """A sparse tensor without its values; a layout that is not known here becomes a dense one."""
    parts = [torch.empty(part.shape, dtype=part.dtype, device="meta") for part in parts_of(tensor)]
    if parts and dtype is not None:
        parts[-1] = parts[-1].to(dtype)
    if tensor.layout == torch.sparse_coo:
        made = torch.sparse_coo_tensor(parts[0], parts[1], tensor.shape, check_invariants=False)
        return made._coalesced_(tensor.is_coalesced())
    if tensor.layout == torch.sparse_csr:
        rows, columns, values = parts
        return torch.sparse_csr_tensor(rows, columns, values, tensor.shape, check_invariants=False)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def sparse_on_cpu(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A sparse tensor with as many entries, all of them ones, at made-up places that are spread over it."""
    by_rows = tensor.layout == torch.sparse_csr
    values = torch.ones(parts_of(tensor)[-1].shape, dtype=dtype)
    entries, shape = values.shape[0], tensor.shape[: 2 if by_rows else tensor.sparse_dim()]
    cells = max(1, prod(shape))
    place = torch.arange(entries) * max(1, cells // max(1, entries)) % cells
    places: List[Tensor] = []
    for size in reversed(shape):
        places.insert(0, place % size)
        place = place // size
    made = torch.sparse_coo_tensor(torch.stack(places), values, tensor.shape, check_invariants=False)
    return made.to_sparse_csr() if by_rows else made._coalesced_(tensor.is_coalesced())


def _sparse(*tensors: Any) -> bool:
    return any(
        isinstance(t, Tensor) and t.device.type == "meta" and t.layout != torch.strided for t in tensors
    )


def is_sparse(args: Any) -> bool:
    """Whether a sparse tensor is among an operator's arguments: cuSPARSE computes it, not cuBLAS."""
    return _sparse(*args)


def _product(first_at: int) -> Callable[..., Any]:
    """The product of the argument at this place with the next one; one before it is added to the result."""

    def handler(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = args[first_at : first_at + 2]
        if not _sparse(first, second):
            return call(func, args, kwargs)
        width = () if second.dim() == 1 else (second.shape[-1],)
        dense = second if second.layout == torch.strided else first
        name, rows = func._schema.name, int(first.shape[0])
        nbytes = rows * (width[0] if width else 1) * dense.element_size()
        made: List[int] = []
        if first.layout == torch.sparse_csc:
            made = _from_columns(recorder, name, first)
        if not first_at:
            made.append(recorder.take(nbytes, name))  # zeros, to which the product is added
        result = torch.empty((rows, *width), dtype=dense.dtype, device=dense.device)
        recorder.note(result, name)
        if first.layout == torch.sparse_coo:
            made += _from_coo(recorder, name, first)
            made.append(recorder.take(nbytes, name))  # cuSPARSE's own result, by columns
            recorder.workspace(int(first._nnz()) // _COO_WORKSPACE, name)
        elif first.layout != torch.strided:
            recorder.workspace(int(first.values().shape[0]) // _CSR_WORKSPACE, name)
        for number in reversed(made):
            recorder.drop(number)
        return result

    return handler


def _from_coo(recorder: Recording, name: str, matrix: Tensor) -> List[int]:
    """The same as rows of 32-bit columns; entries that are not in order are sorted first."""
    count = int(matrix._nnz())
    made: List[int] = []
    if not matrix.is_coalesced():
        scratch = _sorting(recorder, name, count)
        made = [recorder.take(count * size, name) for size in (matrix._values().element_size(), 2 * _INDEX)]
        for number in reversed(scratch):
            recorder.drop(number)
    made.append(recorder.take((int(matrix.shape[0]) + 1) * _NARROW, name))
    recorder.workspace(count * _NARROW, name)
    return [*made, recorder.take(count * _NARROW, name)]


def _from_columns(recorder: Recording, name: str, matrix: Tensor) -> List[int]:
    """A matrix by columns (a transposed one) as one by rows: its entries are sorted."""
    count, rows = int(matrix.values().shape[0]), int(matrix.shape[0])
    places = [recorder.take(nbytes, name) for nbytes in (2 * count * _INDEX, count * _INDEX)]
    recorder.workspace(count * _INDEX, name)
    recorder.drop(places.pop())
    places += [recorder.take(count * _INDEX, name) for _ in range(4)]
    recorder.workspace(count * _SORTED, name)
    recorder.drop(places.pop())
    recorder.drop(places.pop())
    kept = [2 * count * _INDEX, count * matrix.element_size(), (rows + 1) * _INDEX]
    made = [recorder.take(nbytes, name) for nbytes in kept]
    for number in reversed(places):
        recorder.drop(number)
    return made


def _sorting(recorder: Recording, name: str, count: int) -> List[int]:
    """Places in order: as one number each, with where it was, and what the sort needs."""
    scratch = [recorder.take(count * _INDEX, name) for _ in range(3)]
    recorder.workspace(count * _SORTED, name)
    return scratch


def _copy(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A sparse gradient that is accumulated: meta tensors would lose its entries."""
    return sparse_on_meta(args[0]) if _sparse(args[0]) else func(*args, **kwargs)


def _transposed(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy whose entries are not in order; meta tensors would lose them."""
    matrix = args[0]
    if not _sparse(matrix) or matrix.layout != torch.sparse_coo:
        return func(*args, **kwargs)
    one, two = (place % matrix.dim() for place in args[1:3]) if len(args) > 1 else (0, matrix.dim() - 1)
    shape = list(matrix.shape)
    shape[one], shape[two] = shape[two], shape[one]
    indices, values = (torch.empty_like(part, device="meta") for part in parts_of(matrix))
    made = torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)
    recorder.note(made, func._schema.name)
    recorder.workspace(int(values.shape[0]) * _INDEX, func._schema.name)
    return made


def _coalesced(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Entries in order, and no place twice."""
    return _in_order(recorder, func._schema.name, args[0]) if _sparse(args[0]) else func(*args, **kwargs)


def _in_order(recorder: Recording, name: str, matrix: Tensor) -> Tensor:
    """How many entries differ is not known: all of them, as far as there are places."""
    count, dims = int(matrix._nnz()), matrix.sparse_dim()
    scratch = _sorting(recorder, name, count)
    result = _like(matrix, min(count, prod(matrix.shape[:dims])), matrix.shape, dims)._coalesced_(True)
    recorder.note(result, name)
    for number in reversed(scratch):
        recorder.drop(number)
    return result


def _sum(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A sum along some dimensions: entries that lose a place to tell them apart become one."""
    matrix = args[0]
    if not _sparse(matrix) or matrix.layout != torch.sparse_coo:
        return func(*args, **kwargs)
    name, summed = func._schema.name, {int(dim) % matrix.dim() for dim in args[1]}
    kept = [dim for dim in range(matrix.dim()) if dim not in summed]
    shape = [int(matrix.shape[dim]) for dim in kept]
    sparse = len([dim for dim in kept if dim < matrix.sparse_dim()])
    if not sparse:  # no places are left: the sum of the values
        result = torch.empty(shape, dtype=matrix.dtype, device="meta")
        recorder.note(result, name)
        return result
    copied = _like(matrix, int(matrix._nnz()), shape, sparse)
    recorder.note(copied, name)
    return _in_order(recorder, name, copied)


def _sum_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient of what was summed has entries where that had some."""
    return sparse_on_meta(args[1]) if _sparse(args[1]) else func(*args, **kwargs)


def _like(matrix: Tensor, count: int, shape: Any, sparse: int) -> Tensor:
    """As many entries of the matrix's type in another shape; `sparse`: its sparse dimensions."""
    indices = torch.empty((sparse, count), dtype=torch.int64, device="meta")
    values = torch.empty((count, *shape[sparse:]), dtype=matrix.dtype, device="meta")
    return torch.sparse_coo_tensor(indices, values, tuple(shape), check_invariants=False)


def sparse_result(func: Any, args: Any) -> Tensor:
    """Of an operator on a sparse tensor that has no kernel for meta tensors."""
    matrix, name = args[0], func._schema.name
    if name == "aten::_to_dense":
        return torch.empty(matrix.shape, dtype=matrix.dtype, device="meta")
    if matrix.layout != torch.sparse_coo:
        return sparse_on_meta(matrix)
    if name == "aten::index_select":
        shape, dim = list(matrix.shape), int(args[1]) % matrix.dim()
        shape[dim] = int(args[2].numel())
        # Which entries are selected is not known: as many as there are in that part on average.
        return _entries(matrix, -(-int(matrix._nnz()) * shape[dim] // max(1, int(matrix.shape[dim]))), shape)
    if name == "aten::_to_sparse_csr":
        indices, values = parts_of(matrix)
        begins = torch.empty(int(matrix.shape[0]) + 1, dtype=indices.dtype, device="meta")
        made = (begins, indices[1].contiguous(), torch.empty_like(values))
        return torch.sparse_csr_tensor(*made, matrix.shape, check_invariants=False)
    return sparse_on_meta(matrix)


def sparse_sum(first: Tensor, second: Tensor) -> Tensor:
    """The entries of both, which may lie at the same places."""
    return _entries(first, int(first._nnz()) + int(second._nnz()), list(first.shape))


def _entries(like: Tensor, count: int, shape: List[int]) -> Tensor:
    indices = torch.empty((len(shape), count), dtype=torch.int64, device="meta")
    values = torch.empty(count, dtype=like.dtype, device="meta")
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)


def _masked(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A dense tensor's values at the places of a sparse one."""
    return sparse_on_meta(args[1]) if _sparse(args[1]) else func(*args, **kwargs)


_INDEX, _NARROW = 8, 4
_SORTED = 16
"""Bytes for each entry that a sort needs beside its input and result."""
_COO_WORKSPACE, _CSR_WORKSPACE = 64, 3
"""Entries for each byte of cuSPARSE's workspace, with 32-bit indices and with others (H200, PyTorch 2.11)."""
_FIRST, _AFTER_BIAS = _product(0), _product(1)
SPARSE_PRODUCTS: Dict[Any, Callable[..., Any]] = {
    aten.mm.default: _FIRST,
    aten.mv.default: _FIRST,
    aten._sparse_mm.default: _FIRST,
    aten.addmm.default: _AFTER_BIAS,
    aten._sparse_addmm.default: _AFTER_BIAS,
    aten.clone.default: _copy,
    aten.t.default: _transposed,
    aten.transpose.int: _transposed,
    aten._coalesce.default: _coalesced,
    aten._sparse_sum.dim: _sum,
    aten._sparse_sum_backward.default: _sum_backward,
    aten.sparse_mask.default: _masked,
}
