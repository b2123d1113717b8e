"""Results of common operators without PyTorch's meta kernels, many of which are slow Python.

Each function handles only simple cases (same shapes, same types) and returns NOT_PLAIN otherwise.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

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


def overloads(*names: str, only: Sequence[str] = ()) -> List[Any]:
    """The operators of these names, as far as this PyTorch has them: all overloads, or only these; none that
    writes into an `out`."""
    packets = (getattr(aten, name, None) for name in names)
    return [
        getattr(packet, one)
        for packet in packets
        if packet is not None
        for one in only or packet.overloads()
        if "out" not in one and hasattr(packet, one)
    ]


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
        if b.device != a.device or b.dtype != a.dtype:
            return NOT_PLAIN
        if b.shape != a.shape:
            return _spread(a, b)
        if b.stride() != a.stride():
            return NOT_PLAIN
    elif not isinstance(b, (int, float)) or isinstance(b, bool):
        return NOT_PLAIN
    return like(a)


def _spread(a: Tensor, b: Tensor) -> Any:
    """The result of two tensors of which one is repeated along some dimensions of the other."""
    larger, smaller = (a, b) if a.numel() > b.numel() else (b, a)
    if not _contiguous(a, b) or larger.dim() < smaller.dim():
        return NOT_PLAIN
    pairs = zip(reversed(larger.shape), reversed(smaller.shape))
    return like(larger) if all(few in (1, many) for many, few in pairs) else NOT_PLAIN


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
    if not _dense(data):
        return NOT_PLAIN
    kept = [None if not mask[0] else like(data)]
    kept += [None if not mask[i] or weight is None else like(weight) for i in (1, 2)]
    return tuple(kept)


def _contiguous(*tensors: Any) -> bool:
    return all(tensor is None or tensor.is_contiguous() for tensor in tensors)


def _wide(data: Tensor) -> torch.dtype:
    """The type in which norms keep their statistics."""
    return torch.float32 if data.element_size() < _SINGLE else data.dtype


_SINGLE = 4


def _layer_norm(args: Any, kwargs: Any) -> Any:
    data, shape = args[:2]
    if kwargs or not data.is_floating_point() or not data.numel() or not _contiguous(data):
        return NOT_PLAIN
    kept = (*data.shape[: data.dim() - len(shape)], *(1 for _ in shape))
    mean, scale = (torch.empty(kept, dtype=_wide(data), device=data.device) for _ in range(2))
    return like(data), mean, scale


def _layer_norm_backward(args: Any, kwargs: Any) -> Any:
    gradient, data, weight, bias, mask = args[0], args[1], args[5], args[6], args[7]
    if kwargs or not data.numel() or gradient.dtype != data.dtype or not _contiguous(gradient, data, weight):
        return NOT_PLAIN
    return tuple(
        like(one) if wanted and one is not None else None for one, wanted in zip((data, weight, bias), mask)
    )


def _group_norm(args: Any, kwargs: Any) -> Any:
    data, weight, rows, groups = args[0], args[1], args[3], args[6]
    if kwargs or not data.is_floating_point() or not data.numel() or not _contiguous(data):
        return NOT_PLAIN
    if weight is not None and weight.dtype != data.dtype:
        return NOT_PLAIN
    mean, scale = (torch.empty((rows, groups), dtype=data.dtype, device=data.device) for _ in range(2))
    return like(data), mean, scale


def _group_norm_backward(args: Any, kwargs: Any) -> Any:
    gradient, data, weight, mask = args[0], args[1], args[4], args[9]
    if kwargs or weight is None or not gradient.dtype == data.dtype == weight.dtype:
        return NOT_PLAIN
    if not _contiguous(gradient, data):
        return NOT_PLAIN
    return tuple(like(one) if wanted else None for one, wanted in zip((data, weight, weight), mask))


def _product_and_bias(args: Any, kwargs: Any) -> Any:
    bias, first, second = args[:3]
    if kwargs or first.dim() != 2 or second.dim() != 2 or not bias.dtype == first.dtype == second.dtype:
        return NOT_PLAIN
    if first.shape[1] != second.shape[0] or bias.shape not in ((second.shape[1],), (1, second.shape[1])):
        return NOT_PLAIN
    return torch.empty((first.shape[0], second.shape[1]), dtype=first.dtype, device=first.device)


def _softmax_backward(args: Any, kwargs: Any) -> Any:
    gradient, output, _, dtype = args
    if kwargs or not gradient.dtype == output.dtype == dtype or not _contiguous(gradient, output):
        return NOT_PLAIN
    return like(gradient)


def _foreach(args: Any, kwargs: Any) -> List[Tensor]:
    return [like(item) for item in args[0]]


def _in_place(args: Any, kwargs: Any) -> Any:
    return args[0]


def _nothing(args: Any, kwargs: Any) -> None:
    return None


_FUNCTIONS: Tuple[Tuple[Callable[[Any, Any], Any], Tuple[str, ...], Tuple[str, ...]], ...] = (
    (_like_first, _ONE, ("default",)),
    (_like_both, _TWO, ("default",)),
    (_softmax, ("_softmax", "_log_softmax"), ("default",)),
    (arithmetic, ("add", "sub", "mul", "div"), ("Tensor", "Scalar")),
    (_batch_norm, ("native_batch_norm",), ("default",)),
    (_batch_norm_backward, ("native_batch_norm_backward",), ("default",)),
    (_layer_norm, ("native_layer_norm",), ("default",)),
    (_layer_norm_backward, ("native_layer_norm_backward",), ("default",)),
    (_group_norm, ("native_group_norm",), ("default",)),
    (_group_norm_backward, ("native_group_norm_backward",), ("default",)),
    (_softmax_backward, ("_softmax_backward_data", "_log_softmax_backward_data"), ("default",)),
    (_product_and_bias, ("addmm",), ("default",)),
    (_in_place, _IN_PLACE, ()),
    (_foreach, tuple(f"_foreach_{verb}" for verb in _FOREACH), ()),
    (_nothing, tuple(f"_foreach_{verb}_" for verb in (*_FOREACH, "zero", "copy")), ()),
)
PLAIN = {one: function for function, names, only in _FUNCTIONS for one in overloads(*names, only=only)}


def on_meta(args: Any) -> bool:
    """Whether an operator's first argument is a dense meta tensor: only those have no values to compute."""
    if not args:
        return False
    first = args[0]
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, Tensor) and first.device.type == "meta" and first.layout == torch.strided


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator's result: by the shortcut if there is one, else as it was for inputs that lay the same."""
    short = PLAIN.get(func)
    if short is not None and on_meta(args):
        result = short(args, kwargs)
        if result is not NOT_PLAIN:
            return result
    key = _key(func, args, kwargs)
    known = None if key is None else _KNOWN.get(key)
    if known is not None:
        return known()
    result = func(*args, **kwargs)
    if key is not None:
        again = _again(result, (args, kwargs))
        if again is not None:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = again
    return result


# -- Results that are known ------------------------------------------------------------------------

_KNOWN: Dict[Any, Callable[[], Any]] = {}
_MOST_KNOWN = 50_000
_MAKES_NEW: Dict[Any, bool] = {}
"""Operators, and whether what they return is new: no view of an argument, and none of them is written to."""
_NAMES = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    """What a meta kernel's results follow from; None where that is more than how dense meta tensors lie."""
    new = _MAKES_NEW.get(func)
    if new is None:
        every = (*func._schema.arguments, *func._schema.returns)
        new = _MAKES_NEW[func] = all(one.alias_info is None for one in every)
    if not new:
        return None
    parts: List[Any] = [func, torch.get_default_dtype()]
    fine = all(_described(value, parts) for value in args)
    for name in sorted(kwargs):
        parts.append(name)
        fine = fine and _described(kwargs[name], parts)
    return tuple(parts) if fine else None


def _described(value: Any, parts: List[Any]) -> bool:
    """Add how a value is described; False where it cannot be."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type != "meta" or value.dtype.is_complex:
            return False
        parts.append((value.dtype, value.shape, value.stride()))
        return not torch._C._functorch.is_functorch_wrapped_tensor(value)
    if isinstance(value, (list, tuple)):
        parts.append(len(value))
        return all(_described(item, parts) for item in value)
    parts.append((type(value), value))  # 1, 1.0 and True are equal, and not the same
    return value is None or isinstance(value, _NAMES)


def _again(result: Any, given: Any) -> Optional[Callable[[], Any]]:
    """Makes such results; None where they are not new dense tensors, each with its own memory.

    Some operators give a view and do not say so: `_unsafe_view`.
    """
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    if not parts or not all(one is None or _is_new(one) for one in parts):
        return None
    tensors = [one for one in parts if one is not None]
    inputs = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)]
    memory = {one.untyped_storage()._cdata for one in (*tensors, *inputs)}
    if len(memory) < len(tensors) + len({one.untyped_storage()._cdata for one in inputs}):
        return None
    lies = [None if one is None else (one.shape, one.stride(), one.dtype) for one in parts]

    def made(how: Any) -> Any:
        return None if how is None else torch.empty_strided(how[0], how[1], dtype=how[2], device="meta")

    if isinstance(result, (tuple, list)):
        kind = type(result)
        return lambda: kind(made(how) for how in lies)
    return lambda: made(lies[0])


def _is_new(one: Any) -> bool:
    """Whether a result is a dense meta tensor that fills its memory."""
    if not isinstance(one, Tensor) or one.layout != torch.strided or one.device.type != "meta":
        return False
    if one.dtype.is_complex or torch._C._functorch.is_functorch_wrapped_tensor(one):
        return False
    like_it = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
    return one.storage_offset() == 0 and one.untyped_storage().nbytes() == like_it.untyped_storage().nbytes()
