"""What a model may choose where masks rule the rest out: the next stop of a tour, a move in a game.

The scores are not known, but the places whose score is minus infinity often are: a mask that follows from
data with known values. A choice among the others is drawn, each as likely as the next, as a policy that has
learnt nothing does. So masks that follow from the choice stay known, and loops that go on until nothing is
left to choose run about as often as they do on a GPU.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.tracing.engine.values import give, small, value_of

aten = torch.ops.aten
_ALLOWED = "_gpumem_allowed"
"""Where, of a tensor of scores or probabilities, a choice may fall: truths on the CPU."""
_RULED_OUT = -1e4
"""Scores from here on downwards are never chosen; the least ones in half precision are."""


def chance() -> Any:
    """Numbers of our own: the script's generators are left as they are, and each trace draws the same."""
    made = torch._C.Generator()
    made.manual_seed(0)
    return made


def follow_choices(recorder: Recording, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """After an operator ran on meta tensors: what may be chosen from its result, or the choice itself."""
    rule = _RULES.get(func)
    if rule is not None:
        rule(recorder, args, kwargs, result, func)


def _allowed(tensor: Any) -> Optional[Tensor]:
    found: Optional[Tensor] = getattr(tensor, _ALLOWED, None)
    return found


def _mark(result: Tensor, allowed: Optional[Tensor]) -> None:
    if allowed is not None and small(allowed):
        setattr(result, _ALLOWED, allowed)


def _sum(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """Scores and a mask of zeros and minus infinities."""
    if not result.dim() or not result.is_floating_point() or value_of(result) is not None:
        return
    found: Optional[Tensor] = None
    for one in args[:2]:
        allowed = _allowed(one) if _allowed(one) is not None else _open_in(one)
        if allowed is not None:
            allowed = allowed.expand(result.shape)
            found = allowed if found is None else found & allowed
    _mark(result, found)


def _open_in(mask: Any) -> Optional[Tensor]:
    known = value_of(mask) if isinstance(mask, Tensor) and mask.dim() else None
    if known is None or known.layout != torch.strided or not known.is_floating_point() or not small(known):
        return None
    opened = known == 0
    return opened if bool((opened | (known <= _RULED_OUT)).all()) else None


def _filled(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """`scores.masked_fill(mask, -inf)`."""
    data, mask, number = args
    closed = value_of(mask) if mask.device.type == "meta" else mask
    number = value_of(number) if isinstance(number, Tensor) and number.device.type == "meta" else number
    if closed is None or number is None or not data.is_floating_point() or not number <= _RULED_OUT:
        return
    before = _allowed(data)
    opened = closed.logical_not().expand(result.shape)
    _mark(result, opened if before is None else opened & before)


def _same(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """What changes no order: softmax, temperatures, sums to one."""
    allowed = _allowed(args[0])
    if allowed is not None and allowed.shape == result.shape:
        setattr(result, _ALLOWED, allowed)


def _view(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    allowed = _allowed(args[0])
    if allowed is not None:
        _mark(result, allowed.reshape(args[1]) if func in _RESHAPED else func(allowed, *args[1:], **kwargs))


def _drawn(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """`multinomial`: one of the places that are left, or several that may be the same."""
    again = bool(args[2] if len(args) > 2 else kwargs.get("replacement", False))
    if _allowed(args[0]) is not None and (again or result.shape[-1] == 1):
        _choose(recorder, args[0], result)


def _best(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """`argmax` and `max` along the last dimension."""
    data = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if _allowed(data) is None or dim is None or dim % data.dim() != data.dim() - 1:
        return
    index = result if isinstance(result, Tensor) else result[1]
    _choose(recorder, data, index)


def _choose(recorder: Recording, data: Tensor, index: Tensor) -> None:
    """Give the index a value in each row."""
    allowed = _allowed(data)
    if allowed is None or value_of(data) is not None or index.device.type != "meta":
        return
    rows = allowed.reshape(-1, allowed.shape[-1])
    order = rows.cumsum(1)
    count = order[:, -1:]
    if not rows.numel() or not bool(count.all()):
        return
    each = index.numel() // rows.shape[0]
    rank = (torch.rand(rows.shape[0], each, generator=recorder.chance) * count).long() + 1
    give(index, torch.searchsorted(order, rank).view(index.shape))
    recorder.warn_once(
        "drawn choices",
        "the model chooses among what a mask leaves, by scores that a trace does not have: choices were "
        "drawn. Where they decide how often a loop runs, a run may need more or less; let one run be "
        "measured: gpusbatch without --trace",
    )


_RESHAPED = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_RULES: Dict[Any, Callable[[Any, Any, Any, Any, Any], None]] = {
    aten.add.Tensor: _sum,
    aten.masked_fill.Scalar: _filled,
    aten.masked_fill.Tensor: _filled,
    aten.masked_fill_.Scalar: _filled,
    aten.masked_fill_.Tensor: _filled,
    aten.multinomial.default: _drawn,
    aten.argmax.default: _best,
    aten.max.dim: _best,
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default, aten.div.Tensor, aten.sub.Tensor,
                     aten.mul.Tensor, aten.exp.default, aten.clone.default, aten._to_copy.default), _same),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.detach.default,
                     aten.alias.default, aten.squeeze.dim, aten.squeeze.default, aten.unsqueeze.default,
                     aten.select.int, aten.slice.Tensor, aten.expand.default), _view),
}  # fmt: skip
