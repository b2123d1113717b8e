"""Operators that a whole script calls and a traced step does not: copies to the CPU, the gradient scaler.

A script computes on the CPU too, and carries results there: what is not known is made up, so that it goes on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
from torch import Tensor

from slurm_gpumem.tracing.values import give, value_of

aten = torch.ops.aten
Handler = Callable[[Any, Any, Any, Any], Any]


def numbers_of(tensor: Tensor, dtype: Any = None) -> Tensor:
    """A meta tensor's numbers on the CPU: the known ones, or ones (zeros for whole numbers)."""
    known = value_of(tensor)
    kind = dtype or tensor.dtype
    if known is not None:
        return known.to(kind)
    made = torch.ones if kind.is_floating_point else torch.zeros
    return made(tensor.shape, dtype=kind)


def _to_copy(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source, device = args[0], kwargs.get("device")
    if source.device.type != "meta" or device is None or device.type == "meta":
        return func(*args, **kwargs)
    return numbers_of(source, kwargs.get("dtype"))


def _copy(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[:2]
    if source.device.type == "meta" and target.device.type != "meta":
        return func(target, numbers_of(source), *args[2:], **kwargs)
    return func(*args, **kwargs)


def _truth(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`torch.equal`, `is_nonzero`: a Python truth of tensors whose numbers are not known."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if all(tensor.device.type != "meta" for tensor in tensors):
        return func(*args, **kwargs)
    if all(tensor.device.type != "meta" or value_of(tensor) is not None for tensor in tensors):
        return func(
            *[
                numbers_of(arg) if isinstance(arg, Tensor) and arg.device.type == "meta" else arg
                for arg in args
            ]
        )
    recorder.guess.used = True
    return recorder.guess.truth


def _unscale(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """GradScaler divides the gradients in place and looks for infinities, of which there are none."""
    if args[0] and args[0][0].device.type != "meta":
        return func(*args, **kwargs)
    give(args[1], torch.zeros(args[1].shape))
    return None


def _update_scale(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].device.type != "meta":
        return func(*args, **kwargs)
    return args[0]


def _overloads(*names: str) -> List[Any]:
    found: List[Any] = []
    for name in names:
        packet = getattr(aten, name, None)
        found += [getattr(packet, one) for one in packet.overloads()] if packet is not None else []
    return [one for one in found if "out" not in one._overloadname]


HANDLERS: Dict[Any, Handler] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    **dict.fromkeys(_overloads("equal", "is_nonzero", "allclose"), _truth),
    **dict.fromkeys(_overloads("_amp_foreach_non_finite_check_and_unscale_"), _unscale),
    **dict.fromkeys(_overloads("_amp_update_scale_"), _update_scale),
}
