"""While a model is built on the meta device: small tensors keep their values, so that code can read them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_gpumem.tracing.engine.values import follow, value_of

aten = torch.ops.aten


class KnownValues(TorchDispatchMode):
    """Follows the values of small tensors; one that is read and not known is torch's own error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and follow its values."""
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and value_of(args[0]) is not None:
            return value_of(args[0]).item()  # type: ignore[union-attr]
        if func is aten._to_copy.default and value_of(args[0]) is not None:
            device = kwargs.get("device")
            if device is not None and device.type == "cpu":
                return func(value_of(args[0]), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        follow(func, args, kwargs, result)
        return result
