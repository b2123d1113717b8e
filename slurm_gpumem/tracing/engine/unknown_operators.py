"""Operators without an implementation on meta tensors (CUDA extensions): results are assumed and reported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.sparse_products import is_sparse, sparse_result

_OWN = ("aten", "prim", "prims", "profiler")
_SIGNS = ("fake impl", "meta kernel", "'meta' backend", "meta tensors", "not implemented")


def assumed(recorder: Any, func: Any, args: Any, error: BaseException) -> Any:
    """Tensors like the operator's first input; its error where it failed for another reason."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    returns = func._schema.returns
    if tensors and is_sparse(tensors[:1]) and len(returns) == 1 and func.namespace == "aten":
        found = sparse_result(func, args)
        recorder.note(found, func._schema.name)
        return found
    without_code = any(sign in str(error).lower() for sign in _SIGNS)
    only_tensors = all(str(one.type) == "Tensor" for one in returns) and (tensors or not returns)
    if func.namespace in _OWN or not without_code or not only_tensors:
        raise error
    what = "each result is as large as its first input" if returns else "it allocates nothing"
    remark = (
        f"operator {func._schema.name} is unknown without its CUDA code; assumed: {what}, and it needs no "
        "workspace"
    )
    recorder.assume(remark)
    recorder.warnings.setdefault(remark)
    made = tuple(torch.empty_like(tensors[0]) for _ in returns)
    recorder.note_result(made, func._schema.name)
    return made[0] if len(made) == 1 else (made or None)
