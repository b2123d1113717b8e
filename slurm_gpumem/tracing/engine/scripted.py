"""Code that `torch.jit.script` compiled, under autocast: it computes sums and products in single precision.

TorchScript has an autocast of its own, which casts the inputs of these operators to single precision where it
does not know their types when it compiles, and in a function's arguments it never knows. PyTorch's usual
autocast leaves them as they are. On meta tensors TorchScript sees no autocast, so this casts for it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, List, Tuple

import torch

_CALLED = (torch._C.ScriptFunction, torch._C.ScriptMethod)
_WIDENED = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "cat", "stack")
Widen = Callable[[Any], Any]


@contextmanager
def scripted_on_meta(key: str, is_enabled: Callable[[], bool], widen: Widen) -> Iterator[None]:
    """Inside, compiled functions and methods cast as on CUDA where autocast is enabled.

    `key` is autocast's dispatch key, `widen` casts what is in half precision.
    """
    patched: List[Tuple[Any, Any]] = [(kind, kind.__call__) for kind in _CALLED]

    def calling(real: Any) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                if is_enabled():
                    stack.enter_context(_widened(key, widen))
                return real(self, *args, **kwargs)

        return call

    for kind, real in patched:
        setattr(kind, "__call__", calling(real))  # noqa: B010 - mypy knows no such method
    try:
        yield
    finally:
        for kind, real in patched:
            setattr(kind, "__call__", real)  # noqa: B010


@contextmanager
def _widened(key: str, widen: Widen) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    for name in _WIDENED:
        operator_name, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, operator_name), overload or "default")

        def kernel(*args: Any, operator: Any = operator, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return operator(*widen(args), **kwargs)

        library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()
