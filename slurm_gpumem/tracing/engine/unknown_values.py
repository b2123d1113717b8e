"""What is known of tensors whose values are not: an index's choices, a mask's share, what may be chosen.

A router sends each token to some of its experts. Which ones depends on data, how many rows all experts get
together does not: of `topk(2)` among 8, a mask of one expert holds for a quarter of the tokens on average.
Without this every expert would be counted with all tokens.

What a model chooses where masks rule the rest out (the next stop of a tour, a move in a game) is drawn: its
scores are not known, but the places whose score is minus infinity often are, from data with known values.
Each of the others is as likely as the next, as for a policy that has learnt nothing. So masks that follow
from the choice stay known, and loops that go on until nothing is left to choose run about as often as they do
on a GPU.
"""

from __future__ import annotations

import operator
from math import copysign, inf
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.memo import overloads
from slurm_gpumem.tracing.engine.recording import Drawn, Recording, Shares
from slurm_gpumem.tracing.engine.values import MADE_UP, give, small, value_of

aten = torch.ops.aten
Rule = Callable[[Any, Any, Any], None]
"""Of arguments, keywords and the result."""
_CHOICES, _SHARE, _UNEVEN = "_gpumem_choices", "_gpumem_share", "_gpumem_uneven"
_TRUTHS = "_gpumem_truths"
"""Marks whole numbers that were truths: ones and zeros."""
_WHOLE = "_gpumem_whole"
"""Marks floating-point numbers that may be whole: masks, labels, counts, and what came from the CPU."""
_EQUAL = "_gpumem_equal"
"""Marks a mask of where two tensors are the same, of which nothing else is known."""
_CHANCES = "_gpumem_chances"
"""Marks chances, whose sum over the last dimension is one."""
_ALLOWED = "_gpumem_allowed"
"""Where, of a tensor of scores or probabilities, a choice may fall: truths on the CPU."""
_RULED_OUT = -1e4
"""Scores from here on downwards are never chosen; the least ones in half precision are."""


def choices_of(tensor: Any) -> Optional[int]:
    """Number of values that an index may have, if known."""
    return getattr(tensor, _CHOICES, None)


def may_be_whole(tensor: Any) -> bool:
    """Whether floating-point numbers may be whole ones: what a layer computes is not."""
    return hasattr(tensor, _WHOLE) or share_of(tensor) is not None


def mark_whole(tensor: Any) -> None:
    """Remember that a tensor's numbers may be whole."""
    setattr(tensor, _WHOLE, True)


def share_of(tensor: Any) -> Optional[float]:
    """Share of a mask's elements that are true (of ones among zeros), if known."""
    return getattr(tensor, _SHARE, None)


def _drawn_of(mask: Any) -> Drawn:
    drawn: Optional[Drawn] = getattr(mask, _UNEVEN, None)
    if drawn is None:
        drawn = Drawn()
        setattr(mask, _UNEVEN, drawn)
    return drawn


def rows_of(mask: Tensor, shares: Shares) -> int:
    """How many elements of a mask with a known share hold; the same number each time it is asked."""
    share = share_of(mask) or 0.0
    uneven = _drawn_of(mask).factor(shares) if 0 < share < 1 else 1.0
    return min(mask.numel(), round(share * mask.numel() * uneven))


def track(recorder: Recording, func: Any, args: Any, kwargs: Dict[str, Any], result: Any) -> None:
    """After an operator ran on meta tensors: what its result is known to be, or may be chosen from it."""
    rule = _RULES.get(func)
    if rule is not None:
        rule(args, kwargs, result)
    elif func in _SUMS:
        _sum(args[0], result, recorder.shares)
    elif func in _MEANS:
        _mean(args[0], result)
    of_choices = _CHOICES_LEFT.get(func)
    if of_choices is not None:
        of_choices(recorder, args, kwargs, result, func)


def mark_index(result: Any, choices: int) -> None:
    """Remember that a tensor is an index with this number of choices."""
    if choices > 0:
        setattr(result, _CHOICES, int(choices))


def are_chances(tensor: Any) -> bool:
    """Whether a softmax over the last dimension made it."""
    return bool(getattr(tensor, _CHANCES, False))


def _softmax(args: Any, kwargs: Any, result: Any) -> None:
    if args[1] in (-1, result.dim() - 1) and result.dim():
        setattr(result, _CHANCES, True)


def _is_mask(result: Any, share: Optional[float]) -> None:
    if share is not None:
        setattr(result, _SHARE, min(1.0, max(0.0, share)))


# -- Rules: (arguments, keywords, result) ----------------------------------------------------------


def _same(args: Any, kwargs: Any, result: Any) -> None:
    """Views and copies."""
    for name in (_CHOICES, _SHARE, _TRUTHS, _EQUAL, _WHOLE):
        known = getattr(args[0], name, None)
        if known is not None:
            for one in result if isinstance(result, (list, tuple)) else (result,):
                setattr(one, name, known)
    there = isinstance(result, Tensor) and result.device.type == "meta"
    if there and are_chances(args[0]) and result.shape[-1:] == args[0].shape[-1:]:
        setattr(result, _CHANCES, True)
    if share_of(args[0]) is not None and isinstance(result, Tensor) and result.numel() == args[0].numel():
        setattr(result, _UNEVEN, _drawn_of(args[0]))


def _cast(args: Any, kwargs: Any, result: Any) -> None:
    _same(args, kwargs, result)
    if args[0].dtype == torch.bool and not result.is_floating_point():
        setattr(result, _TRUTHS, True)
    if not args[0].is_floating_point() or args[0].device.type == "cpu":
        mark_whole(result)


def _of_whole(args: Any, kwargs: Any, result: Any) -> None:
    """What has whole numbers where all that it is made of has."""
    given = [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else (arg,))]
    if all(_is_whole(one) for one in given):
        mark_whole(result)


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or may_be_whole(value)
    return not isinstance(value, float) or value.is_integer() or value in (inf, -inf)


def _product(args: Any, kwargs: Any, result: Any) -> None:
    _both(args, kwargs, result)
    _of_whole(args, kwargs, result)


def _dim(args: Any, kwargs: Any, at: int, default: Optional[int]) -> Optional[int]:
    dim: Optional[int] = args[at] if len(args) > at else kwargs.get("dim", default)
    return dim


def _position(args: Any, kwargs: Any, result: Any) -> None:
    """`argmax` and its kin: an index along a dimension, or of the whole tensor."""
    dim = _dim(args, kwargs, 1, None)
    mark_index(result, args[0].numel() if dim is None else args[0].shape[dim] if args[0].dim() else 1)


def _positions(at: int, default: int) -> Rule:
    """`topk`, `sort`, `max` along a dimension: values as in the input, and their indices."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        dim = _dim(args, kwargs, at, default)
        values, indices = result
        _same(args, kwargs, values)
        if args[0].dim() and isinstance(dim, int):
            mark_index(indices, args[0].shape[dim])

    return rule


def _of_last(args: Any, kwargs: Any, result: Any) -> None:
    """`argsort`, `multinomial`: indices along the last dimension."""
    if args[0].dim():
        mark_index(result, args[0].shape[-1])


def _equal(args: Any, kwargs: Any, result: Any) -> None:
    first, second = args[:2]
    if first is second:
        _is_mask(result, 1.0)
    elif not isinstance(second, Tensor) and second in (inf, -inf):
        _is_mask(result, 0.0)
    else:
        choices = choices_of(first) or choices_of(second)
        if choices is not None and value_of(result) is None:
            _is_mask(result, 1 / choices)
            if 2 * result.numel() < choices:  # one word of thousands, such as that which ends a text
                _is_all(result, False)
        elif isinstance(second, Tensor) and first.shape == second.shape and value_of(result) is None:
            setattr(result, _EQUAL, True)


def _unequal(args: Any, kwargs: Any, result: Any) -> None:
    _equal(args, kwargs, result)
    share = share_of(result)
    _is_mask(result, None if share is None else 1 - share)
    if share is not None and hasattr(result, MADE_UP):
        _is_all(result, True)
    if hasattr(result, _EQUAL):
        delattr(result, _EQUAL)


def _is_all(result: Tensor, truth: bool) -> None:
    give(result, torch.full(result.shape, truth, dtype=result.dtype))
    setattr(result, MADE_UP, True)


def _scattered(args: Any, kwargs: Any, result: Any) -> None:
    """One-hot rows: ones at chosen places. One place a row is enough to know how many there are."""
    dim, index = args[1:3]
    one_each = index.dim() > 1 and index.shape[dim] == 1
    if (one_each or choices_of(index) is not None) and args[3] == 1 and result.numel():
        _is_mask(result, index.numel() / result.numel())
        setattr(result, _UNEVEN, Drawn(1.0))  # as many ones as there are indices, wherever they are


def _any(args: Any, kwargs: Any, result: Any) -> None:
    share = share_of(args[0])
    if share is None or not result.numel():
        return
    together = share * args[0].numel() / result.numel()
    if together == 0 or (together >= 1 and result.dim() == 0):
        give(result, torch.full(result.shape, together > 0, dtype=result.dtype))
        if 0 < share < 1:  # likely, no more: a mask of taken places may be read at free ones only
            setattr(result, MADE_UP, True)
    else:
        _is_mask(result, together)
        if together < 1:  # of the elements that are put together at most one holds: as many as before
            setattr(result, _UNEVEN, _drawn_of(args[0]))


def _all(args: Any, kwargs: Any, result: Any) -> None:
    share = share_of(args[0])
    if share is not None and share in (0.0, 1.0):
        give(result, torch.full(result.shape, share == 1.0, dtype=result.dtype))
    elif result.dim() and args[0].numel() > result.numel():
        # Of rows that must hold everywhere: a model that has learnt nothing is hardly ever right all along.
        if share is not None:
            _is_mask(result, share ** (args[0].numel() / result.numel()))
        elif hasattr(args[0], _EQUAL):
            _is_mask(result, 0.0)


def _or_more(args: Any, kwargs: Any, result: Any) -> None:
    """A mask that others are added to (`isclose` does so) is no mask of what is equal any more."""
    if hasattr(result, _EQUAL):
        delattr(result, _EQUAL)


def _together(share: Callable[[float, float], float]) -> Rule:
    """Two masks in one."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        one, two = share_of(args[0]), share_of(args[1])
        if one is not None and two is not None:
            _is_mask(result, share(one, two))

    return rule


_both = _together(operator.mul)


def _not(args: Any, kwargs: Any, result: Any) -> None:
    share = share_of(args[0])
    _is_mask(result, None if share is None else 1 - share)


def _sum(mask: Any, result: Any, shares: Shares) -> None:
    """How many hold: about as many in each sum; all, as where it selects, of a mask that is not known.

    Half of those that compare two tensors: that is a score, and with the best one scripts end their training.
    """
    _of_whole((mask,), {}, result)
    if value_of(result) is not None or not small(result) or not result.numel():
        return
    share = share_of(mask)
    if share is not None:
        total = rows_of(mask, shares) if result.numel() == 1 else round(share * mask.numel())
        count = shares.parts(total, result.numel())
    elif mask.dtype == torch.bool or hasattr(mask, _TRUTHS):
        each = mask.numel() // result.numel()
        count = [each // 2 if hasattr(mask, _EQUAL) and each > 1 else each] * result.numel()
        setattr(result, MADE_UP, True)
    else:
        return
    give(result, torch.tensor(count, dtype=result.dtype).view(result.shape))


def _mean(mask: Any, result: Any) -> None:
    """The share that holds; half of a mask that compares two tensors, as in sums."""
    share = share_of(mask)
    if value_of(result) is not None or not small(result) or not mask.numel():
        return
    if share is None and hasattr(mask, _EQUAL):
        share = 0.5
        setattr(result, MADE_UP, True)
    if share is not None:
        give(result, torch.full(result.shape, share, dtype=result.dtype))


def _compared(compare: Callable[[Any, Any], bool]) -> Rule:
    """Ones among zeros keep their share; a single unknown number is one, as when it is read."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        data, limit = args[:2]
        if isinstance(limit, complex) or value_of(result) is not None:
            return
        if share_of(data) is not None and compare(1, limit) and not compare(0, limit):
            _is_mask(result, share_of(data))
        elif data.numel() == 1 and data.is_floating_point():
            # Its sign is the limit's: code that compares with a small negative number expects negative ones.
            give(result, torch.full(result.shape, compare(copysign(1.0, limit), limit)))
            setattr(result, MADE_UP, True)

    return rule


_VIEWS = (
    "view _unsafe_view reshape expand permute transpose t unsqueeze squeeze select slice clone detach alias "
    "contiguous index index_select gather unbind split split_with_sizes repeat flip roll lift_fresh "
    "as_strided"
)
_WHOLE_NUMBERS = (
    "round floor ceil trunc sign zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full"
)
_ROWS: Tuple[Tuple[Any, ...], ...] = (
    (_same, _VIEWS),
    (_cast, "_to_copy"),
    (_softmax, "_softmax", "default"),
    (_position, "argmax argmin", "default"),
    (_positions(2, -1), "topk", "default"),
    (_positions(1, -1), "sort", "default"),
    (_positions(2, -1), "sort", "stable"),
    (_positions(1, 0), "max min", "dim"),
    (_of_last, "argsort"),
    (_of_last, "multinomial", "default"),
    (_equal, "eq", "Scalar", "Tensor"),
    (_unequal, "ne", "Scalar", "Tensor"),
    *((_compared(getattr(operator, verb)), verb, "Scalar") for verb in ("lt", "le", "gt", "ge")),
    (_scattered, "scatter scatter_", "value"),
    (_any, "any"),
    (_all, "all"),
    (_both, "logical_and bitwise_and", "default", "Tensor"),
    (_product, "mul", "Tensor"),
    (_of_whole, "add sub rsub neg abs maximum minimum clamp clamp_min clamp_max cat stack"),
    (_of_whole, "where", "self", "Scalar", "ScalarSelf", "ScalarOther"),
    (lambda args, kwargs, result: mark_whole(result), _WHOLE_NUMBERS),
    (_together(operator.add), "logical_or bitwise_or", "default", "Tensor"),
    (_or_more, "logical_or_ bitwise_or_ __ior__"),
    (_not, "logical_not bitwise_not", "default"),
    (lambda args, kwargs, result: _is_mask(result, 0.0), "isnan isinf", "default"),  # training goes well
)
"""A rule, the operators that it is for, and which of their overloads; without any, all."""
_RULES: Dict[Any, Rule] = {
    one: rule for rule, names, *only in _ROWS for one in overloads(*names.split(), only=only)
}
_SUMS = {*overloads("sum", "count_nonzero", only=["default", "dim_IntList"])}
_MEANS = {aten.mean.default, aten.mean.dim}


# -- What masks leave to choose: (recorder, arguments, keywords, result, operator) ---------------------


def _allowed(tensor: Any) -> Optional[Tensor]:
    found: Optional[Tensor] = getattr(tensor, _ALLOWED, None)
    return found


def _leave(result: Tensor, allowed: Optional[Tensor]) -> None:
    if allowed is not None and small(allowed):
        setattr(result, _ALLOWED, allowed)


def _scores(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """Scores and a mask of zeros and minus infinities."""
    if not result.dim() or not result.is_floating_point() or value_of(result) is not None:
        return
    found: Optional[Tensor] = None
    for one in args[:2]:
        allowed = _allowed(one) if _allowed(one) is not None else _open_in(one)
        if allowed is not None:
            allowed = allowed.expand(result.shape)
            found = allowed if found is None else found & allowed
    _leave(result, found)


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
    before, opened = _allowed(data), closed.logical_not().expand(result.shape)
    _leave(result, opened if before is None else opened & before)


def _in_order(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """What changes no order: softmax, temperatures, sums to one."""
    allowed = _allowed(args[0])
    if allowed is not None and allowed.shape == result.shape:
        setattr(result, _ALLOWED, allowed)


def _view(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    allowed = _allowed(args[0])
    if allowed is not None:
        _leave(result, allowed.reshape(args[1]) if func in _RESHAPED else func(allowed, *args[1:], **kwargs))


def _draw(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """`multinomial`: one of the places that are left, or several that may be the same."""
    again = bool(args[2] if len(args) > 2 else kwargs.get("replacement", False))
    if again or result.shape[-1] == 1:
        _choose(recorder, args[0], result)


def _best(recorder: Recording, args: Any, kwargs: Any, result: Any, func: Any) -> None:
    """`argmax` and `max` along the last dimension."""
    data = args[0]
    dim = _dim(args, kwargs, 1, None)
    if _allowed(data) is None or dim is None or dim % data.dim() != data.dim() - 1:
        return
    _choose(recorder, data, result if isinstance(result, Tensor) else result[1])


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
_CHOICES_LEFT: Dict[Any, Callable[[Any, Any, Any, Any, Any], None]] = {
    aten.add.Tensor: _scores,
    **dict.fromkeys(overloads("masked_fill", "masked_fill_"), _filled),
    aten.multinomial.default: _draw,
    aten.argmax.default: _best,
    aten.max.dim: _best,
    **dict.fromkeys((*overloads("_softmax", "_log_softmax", "exp", "clone", "_to_copy", only=["default"]),
                     *overloads("div", "sub", "mul", only=["Tensor"])), _in_order),
    **dict.fromkeys((*_RESHAPED, aten.detach.default, aten.alias.default, aten.squeeze.dim,
                     aten.squeeze.default, aten.unsqueeze.default, aten.select.int, aten.slice.Tensor,
                     aten.expand.default), _view),
}  # fmt: skip
