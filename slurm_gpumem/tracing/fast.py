"""Results of common operators without PyTorch's meta kernels, many of which are slow Python.

Each function handles only simple cases (same shapes, same types) and returns NOT_PLAIN otherwise.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List

import torch
from torch import Tensor

aten = torch.ops.aten
NOT_PLAIN = object()
"""Use the real meta kernel."""

_ONE = (
    "relu", "gelu", "silu", "sigmoid", "tanh", "neg", "exp", "sqrt", "rsqrt", "abs", "sin", "cos", "erf",
    "hardswish", "hardsigmoid", "mish", "leaky_relu", "elu", "hardtanh", "softplus", "reciprocal", "log",
    "square",
)  # fmt: skip
_IN_PLACE = (
    "add_", "sub_", "mul_", "div_", "copy_", "fill_", "zero_", "lerp_", "addcmul_", "addcdiv_", "normal_",
    "uniform_", "bernoulli_", "relu_", "silu_", "clamp_", "sqrt_", "hardtanh_",
)  # fmt: skip
_FOREACH = (
    "add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "sqrt", "neg", "pow", "reciprocal", "abs",
    "maximum", "minimum", "clamp_max", "clamp_min", "exp", "sign",
)  # fmt: skip
_TWO = (
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward",
    "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "mish_backward",
)  # fmt: skip


def like(tensor: Tensor) -> Tensor:
    """`torch.empty_like`, whose meta kernel is Python."""
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if _dense(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return torch.empty_like(tensor)


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _like_first(args: Any, kwargs: Any) -> Any:
    data = args[0]
    if kwargs or not data.is_floating_point():
        return NOT_PLAIN
    return like(data)


def _like_both(args: Any, kwargs: Any) -> Any:
    a, b = args[:2]
    if kwargs or a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride():
        return NOT_PLAIN
    return like(a)


def arithmetic(args: Any, kwargs: Any) -> Any:
    """Sums and products of two tensors of one shape and type, or of a tensor and a number."""
    a, b = args[:2]
    if not isinstance(a, Tensor) or not a.is_floating_point() or kwargs.keys() - {"alpha"}:
        return NOT_PLAIN
    if isinstance(b, Tensor):
        if b.device != a.device:
            return NOT_PLAIN
        if b.dtype != a.dtype or b.shape != a.shape or b.stride() != a.stride():
            return NOT_PLAIN
    elif not isinstance(b, (int, float)) or isinstance(b, bool):
        return NOT_PLAIN
    return like(a)


def _softmax(args: Any, kwargs: Any) -> Any:
    data = args[0]
    if kwargs or not data.is_contiguous():
        return NOT_PLAIN
    if args[2]:  # half precision in, single precision out
        return torch.empty(data.shape, dtype=torch.float32, device=data.device)
    return like(data)


def _batch_norm(args: Any, kwargs: Any) -> Any:
    data = args[0]
    if not args[5]:
        return NOT_PLAIN
    wide = torch.float32 if data.dtype != torch.float64 else data.dtype
    size = data.shape[1]
    return (
        like(data),
        torch.empty(size, dtype=wide, device=data.device),
        torch.empty(size, dtype=wide, device=data.device),
    )


def _batch_norm_backward(args: Any, kwargs: Any) -> Any:
    data, weight, mask = args[1], args[2], args[9]
    kept = [None if not mask[0] else like(data)]
    kept += [None if not mask[i] or weight is None else like(weight) for i in (1, 2)]
    return tuple(kept)


def _foreach(args: Any, kwargs: Any) -> List[Tensor]:
    return [like(item) for item in args[0]]


def _in_place(args: Any, kwargs: Any) -> Any:
    return args[0]


def _nothing(args: Any, kwargs: Any) -> None:
    return None


def _plain_functions() -> Dict[Any, Callable[[Any, Any], Any]]:
    found: Dict[Any, Callable[[Any, Any], Any]] = {}

    def put(names: Iterable[str], function: Callable[[Any, Any], Any], overloads: Iterable[str] = ()) -> None:
        for name in names:
            packet = getattr(aten, name, None)
            for overload in overloads or (packet.overloads() if packet is not None else ()):
                if "out" not in overload and hasattr(packet, overload):
                    found[getattr(packet, overload)] = function

    put(_ONE, _like_first, ("default",))
    put(_TWO, _like_both, ("default",))
    put(("_softmax", "_log_softmax"), _softmax, ("default",))
    put(("add", "sub", "mul", "div"), arithmetic, ("Tensor", "Scalar"))
    put(("native_batch_norm",), _batch_norm, ("default",))
    put(("native_batch_norm_backward",), _batch_norm_backward, ("default",))
    put(_IN_PLACE, _in_place)
    put([f"_foreach_{verb}" for verb in _FOREACH], _foreach)
    put([f"_foreach_{verb}_" for verb in (*_FOREACH, "zero", "copy")], _nothing)
    return found


PLAIN = _plain_functions()


def on_meta(args: Any) -> bool:
    """Whether an operator's first argument is a meta tensor: only those have no values to compute."""
    if not args:
        return False
    first = args[0]
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, Tensor) and first.device.type == "meta"
