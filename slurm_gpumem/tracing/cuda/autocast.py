"""Autocast for meta tensors: PyTorch's own works on CUDA and CPU tensors only.

It covers the operators that have an autocast kernel for CUDA; here they get one that casts meta tensors
the same way, and a cache of cast weights that lives as long as the outermost context.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

# Code that `torch.jit.script` compiled, under autocast: it computes sums and products in single precision.
#
# TorchScript has an autocast of its own, which casts the inputs of these operators to single precision where
# it does not know their types when it compiles, and in a function's arguments it never does. PyTorch's usual
# autocast leaves them as they are. On meta tensors TorchScript sees no autocast, so this casts for it.

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


KEY = "AutocastCUDA"
_LOWER = {
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm",
    "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell",
    "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
}  # fmt: skip
_WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot",
    "scatter_add", "vdot",
}  # fmt: skip
_WIDE_RESULT = {
    "prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum",
}  # fmt: skip
_SKIPPED = {"binary_cross_entropy", "norm"}


class Autocast:
    """The state of autocast on meta tensors: on or off, the type, the cache of cast weights."""

    def __init__(self) -> None:
        self.enabled = False
        self.dtype = torch.float16
        self.depth = 0
        self.cache: Dict[int, Tuple[Tensor, Tensor]] = {}
        self.caches = True
        self.of_weights: Optional[torch.dtype] = None
        """To which weights were cast that are trained."""
        self.when_scripted: Callable[[], None] = lambda: None
        """Called when code that torch.jit.script compiled trains under autocast."""

    def casts_in_script(self) -> bool:
        """Whether compiled code that is called now casts."""
        if self.enabled and torch.is_grad_enabled():
            self.when_scripted()
        return self.enabled

    # -- Casts -----------------------------------------------------------------------------------

    def lower(self, value: Any) -> Any:
        """Tensors in half precision, weights from the cache."""
        if isinstance(value, Tensor):
            return self._lower(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.lower(item) for item in value)
        return value

    def _lower(self, tensor: Tensor) -> Tensor:
        if not _eligible(tensor) or tensor.dtype == self.dtype:
            return tensor
        if (
            self.caches
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        ):
            found = self.cache.get(id(tensor))
            if found is None:
                found = self.cache[id(tensor)] = (tensor, tensor.to(self.dtype))
                self.of_weights = self.dtype if torch.is_grad_enabled() else self.of_weights
            return found[1]
        return tensor.to(self.dtype)


def _eligible(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "meta"
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
    )


def _cast_all(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if _eligible(value) and value.dtype != dtype else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast_all(item, dtype) for item in value)
    return value


def _kernel(state: Autocast, name: str, operator: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def lower(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            # Compilers evaluate arguments from the last to the first.
            named = {k: state.lower(v) for k, v in kwargs.items()}
            return operator(*reversed([state.lower(a) for a in reversed(args)]), **named)

    def full(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            wide = torch.float32
            return operator(*_cast_all(args, wide), **{k: _cast_all(v, wide) for k, v in kwargs.items()})

    def widest(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            floats = [a for a in args if _eligible(a)]
            if any(a.dtype == torch.float32 for a in floats):
                args = _cast_all(args, torch.float32)
            return operator(*args, **kwargs)

    def wide_result(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            given = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
            if _eligible(args[0]) and not given:
                if args and args[-1] is None:
                    args = args[:-1]
                kwargs = {**kwargs, "dtype": torch.float32}
            return operator(*args, **kwargs)

    if name in _LOWER:
        return lower
    if name in _WIDEST:
        return widest
    return wide_result if name in _WIDE_RESULT else full


@contextmanager
def autocast_on_meta() -> Iterator[Autocast]:
    """Inside, `torch.autocast("cuda", …)` works on meta tensors."""
    state = Autocast()
    library = torch.library.Library("aten", "IMPL")
    patched: List[Tuple[Any, str, Any]] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid.*kernel.*")
        for full_name in _operators():
            name, _, overload = full_name.partition(".")
            if name not in _SKIPPED:
                operator = getattr(getattr(torch.ops.aten, name), overload or "default")
                library.impl(full_name, _kernel(state, name, operator), KEY, allow_override=True)
    _patch(patched, state)
    try:
        with scripted_on_meta(KEY, state.casts_in_script, lambda value: _cast_all(value, torch.float32)):
            yield state
    finally:
        _switch(state, False)
        for owner, attribute, value in reversed(patched):
            setattr(owner, attribute, value)
        state.cache.clear()
        library._destroy()


def _operators() -> List[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return [name[6:] for name in names if name.startswith("aten::") and has(name, KEY)]


def _switch(state: Autocast, enabled: bool) -> None:
    state.enabled = enabled
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, enabled)
    torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, not enabled)


def _patch(patched: List[Tuple[Any, str, Any]], state: Autocast) -> None:
    """`torch.autocast` and its query functions, for "cuda" and "meta"."""
    kind = torch.amp.autocast_mode.autocast
    ours = ("cuda", "meta")
    init, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    def begin(
        self: Any,
        device_type: str,
        dtype: Optional[torch.dtype] = None,
        enabled: bool = True,
        cache_enabled: Optional[bool] = None,
    ) -> None:
        self._ours = device_type in ours
        if not self._ours:
            init(self, device_type, dtype, enabled, cache_enabled)
            return
        self.device, self.fast_dtype, self._enabled = device_type, dtype or torch.float16, enabled
        self._cache_enabled = state.caches if cache_enabled is None else cache_enabled

    def go_in(self: Any) -> Any:
        if not self._ours:
            return enter(self)
        self._before = (state.enabled, state.dtype, state.caches)
        state.depth += 1
        state.dtype, state.caches = self.fast_dtype, self._cache_enabled
        _switch(state, self._enabled)
        return self

    def come_out(self: Any, *error: Any) -> Any:
        if not self._ours:
            return leave(self, *error)
        state.depth -= 1
        if state.depth == 0:
            state.cache.clear()
        enabled, state.dtype, state.caches = self._before
        _switch(state, enabled)
        return False

    asked, asked_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    available, clear_others = torch.amp.is_autocast_available, torch.clear_autocast_cache

    def is_enabled(device_type: Optional[str] = None) -> bool:
        return state.enabled if device_type in (None, *ours) else asked(device_type)

    def dtype_of(device_type: str) -> torch.dtype:
        return state.dtype if device_type in ours else asked_dtype(device_type)

    def clear() -> None:
        state.cache.clear()
        clear_others()

    def is_available(device_type: str) -> bool:
        # Checkpointed layers are recomputed under autocast only if their device supports it.
        return device_type in ours or available(device_type)

    replacements: Tuple[Tuple[Any, str, Any], ...] = (
        (kind, "__init__", begin),
        (kind, "__enter__", go_in),
        (kind, "__exit__", come_out),
        (torch, "is_autocast_enabled", is_enabled),
        (torch, "get_autocast_dtype", dtype_of),
        (torch, "clear_autocast_cache", clear),
        (torch.amp, "is_autocast_available", is_available),
    )
    for owner, attribute, function in (*replacements, *_hugging_face()):
        patched.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, function)


def _hugging_face() -> Iterator[Tuple[Any, str, Any]]:
    """Its models switch autocast off for a few operators, but not if their tensors are on "meta"."""
    name = "maybe_autocast"
    original = getattr(sys.modules.get("transformers.utils.generic"), name, None)
    if original is None:
        return

    def as_on_cuda(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original("cuda" if device_type == "meta" else device_type, *args, **kwargs)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            yield module, name, as_on_cuda
