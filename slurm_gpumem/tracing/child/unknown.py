"""Operators without an implementation on meta tensors (CUDA extensions): results are assumed and reported."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_OWN = ("aten", "prim", "prims", "profiler")
_SIGNS = ("fake impl", "meta kernel", "'meta' backend", "meta tensors", "not implemented")


def is_unknown_operator(error: BaseException) -> bool:
    """Whether a trace failed because an operator has no implementation without a GPU."""
    text = str(error).lower()
    return isinstance(error, (RuntimeError, NotImplementedError)) and any(sign in text for sign in _SIGNS)


class UnknownOperators(TorchDispatchMode):
    """Lets an operator without an implementation return tensors like its first input."""

    def __init__(self) -> None:
        super().__init__()
        self._met: Dict[str, str] = {}

    @property
    def remarks(self) -> List[str]:
        """What was assumed for each operator."""
        return list(self._met.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; if it cannot run, assume its result."""
        try:
            return func(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError) as error:
            if func.namespace in _OWN or not is_unknown_operator(error):
                raise
            tensors = [value for value in args if isinstance(value, Tensor)]
            returns = func._schema.returns
            if any(str(one.type) != "Tensor" for one in returns) or (returns and not tensors):
                raise
            return self._assumed(func, tensors)

    def _assumed(self, func: Any, tensors: List[Tensor]) -> Any:
        returns = func._schema.returns
        self._met[func._schema.name] = (
            f"operator {func._schema.name} is unknown without its CUDA code; assumed: "
            + ("each result is as large as its first input" if returns else "it allocates nothing")
            + ", and it needs no workspace"
        )
        made = tuple(torch.empty_like(tensors[0]) for _ in returns)
        return made[0] if len(made) == 1 else (made or None)
