"""What is known of tensors whose values are not: the choices of an index, the share of a mask that holds.

A router sends each token to some of its experts. Which ones depends on data, how many rows all experts get
together does not: of `topk(2)` among 8, a mask of one expert holds for a quarter of the tokens on average.
Without this every expert would be counted with all tokens.
"""

from __future__ import annotations

import operator
from math import copysign, inf
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.recording import Shares
from slurm_gpumem.tracing.engine.values import MADE_UP, give, small, value_of

aten = torch.ops.aten
_CHOICES, _SHARE, _UNEVEN = "_gpumem_choices", "_gpumem_share", "_gpumem_uneven"
_TRUTHS = "_gpumem_truths"
"""Marks whole numbers that were truths: ones and zeros."""
_WHOLE = "_gpumem_whole"
"""Marks floating-point numbers that may be whole: masks, labels, counts, and what came from the CPU."""
_EQUAL = "_gpumem_equal"
"""Marks a mask of where two tensors are the same, of which nothing else is known."""
_CHANCES = "_gpumem_chances"
"""Marks chances, whose sum over the last dimension is one."""
MOST = 0.2
"""How far a share is from its mean at most."""
_GOLDEN = 0.6180339887


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


class Uneven:
    """Shares that differ somewhat, as those of experts do: such blocks fit each other's places badly.

    They come in pairs, one above and one below its share, so that together they are what all of them share.
    """

    def __init__(self) -> None:
        self.count = self._kept = 0
        """Factors that were drawn."""

    def keep(self) -> None:
        """From here on `again` begins."""
        self._kept = self.count

    def again(self) -> None:
        """The same shares as after the last `keep`."""
        self.count = self._kept

    def factor(self) -> float:
        """The next one, from 1 - MOST to 1 + MOST."""
        pair, odd = divmod(self.count, 2)
        self.count += 1
        away = MOST * (((pair + 1) * _GOLDEN) % 1)
        return 1 - away if odd else 1 + away

    def parts(self, total: int, count: int) -> List[int]:
        """`total` in whole parts."""
        weights = [self.factor() for _ in range(count)]
        ends = [round(total * sum(weights[: n + 1]) / sum(weights)) for n in range(count)]
        return [end - start for start, end in zip([0, *ends], ends)]


class _Drawn:
    """By how much one mask differs from its share: drawn once, the same for what is made from the mask."""

    def __init__(self, factor: Optional[float] = None) -> None:
        self._factor = factor
        self._number = -1

    def factor(self, shares: Shares) -> float:
        if self._factor is None:
            self._number = shares.count
            self._factor = shares.factor()
        elif self._number == shares.count:
            shares.factor()  # in a block that is computed again: it was drawn here the first time
        return self._factor


def _drawn_of(mask: Any) -> _Drawn:
    drawn: Optional[_Drawn] = getattr(mask, _UNEVEN, None)
    if drawn is None:
        drawn = _Drawn()
        setattr(mask, _UNEVEN, drawn)
    return drawn


def rows_of(mask: Tensor, shares: Shares) -> int:
    """How many elements of a mask with a known share hold; the same number each time it is asked."""
    share = share_of(mask) or 0.0
    uneven = _drawn_of(mask).factor(shares) if 0 < share < 1 else 1.0
    return min(mask.numel(), round(share * mask.numel() * uneven))


def track(func: Any, args: Any, kwargs: Dict[str, Any], result: Any, shares: Shares) -> None:
    """After an operator ran on meta tensors: what its result is known to be."""
    rule = _RULES.get(func)
    if rule is not None:
        rule(args, kwargs, result)
    elif func in _SUMS:
        _sum(args[0], result, shares)
    elif func in _MEANS:
        _mean(args[0], result)


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


def _rounded(args: Any, kwargs: Any, result: Any) -> None:
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


def _positions(at: int, default: int) -> Callable[[Any, Any, Any], None]:
    """`topk`, `sort`, `max` along a dimension: values as in the input, and their indices."""

    def rule(args: Any, kwargs: Any, result: Any) -> None:
        dim = _dim(args, kwargs, at, default)
        values, indices = result
        _same(args, kwargs, values)
        if args[0].dim() and isinstance(dim, int):
            mark_index(indices, args[0].shape[dim])

    return rule


def _argsort(args: Any, kwargs: Any, result: Any) -> None:
    if args[0].dim():
        mark_index(result, args[0].shape[-1])


def _drawn(args: Any, kwargs: Any, result: Any) -> None:
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
        setattr(result, _UNEVEN, _Drawn(1.0))  # as many ones as there are indices, wherever they are


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


def _both(args: Any, kwargs: Any, result: Any) -> None:
    one, two = share_of(args[0]), share_of(args[1])
    if one is not None and two is not None:
        _is_mask(result, one * two)


def _either(args: Any, kwargs: Any, result: Any) -> None:
    one, two = share_of(args[0]), share_of(args[1])
    if one is not None and two is not None:
        _is_mask(result, one + two)


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


def _missing(args: Any, kwargs: Any, result: Any) -> None:
    """`isnan`, `isinf`: training goes well."""
    _is_mask(result, 0.0)


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any, Any], None]:
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
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze",
    "select", "slice", "clone", "detach", "alias", "contiguous", "index", "index_select", "gather",
    "unbind", "split", "split_with_sizes", "repeat", "flip", "roll", "lift_fresh", "as_strided",
)  # fmt: skip


def _rules() -> Dict[Any, Callable[[Any, Any, Any], None]]:
    found: Dict[Any, Callable[[Any, Any, Any], None]] = {}

    def put(names: str, rule: Callable[[Any, Any, Any], None], *overloads: str) -> None:
        for name in names.split():
            packet = getattr(aten, name, None)
            for one in overloads or (packet.overloads() if packet is not None else ()):
                if "out" not in one and hasattr(packet, one):
                    found[getattr(packet, one)] = rule

    put(" ".join(_VIEWS), _same)
    put("_to_copy", _cast)
    put("_softmax", _softmax, "default")
    put("argmax argmin", _position, "default")
    put("topk", _positions(2, -1), "default")
    put("sort", _positions(1, -1), "default")
    put("sort", _positions(2, -1), "stable")
    put("max min", _positions(1, 0), "dim")
    put("argsort", _argsort)
    put("multinomial", _drawn, "default")
    put("eq", _equal, "Scalar", "Tensor")
    put("ne", _unequal, "Scalar", "Tensor")
    for verb in ("lt", "le", "gt", "ge"):
        put(verb, _compared(getattr(operator, verb)), "Scalar")
    put("scatter scatter_", _scattered, "value")
    put("any", _any)
    put("all", _all)
    put("logical_and bitwise_and", _both, "default", "Tensor")
    put("mul", _product, "Tensor")
    put("add sub rsub neg abs maximum minimum clamp clamp_min clamp_max cat stack", _of_whole)
    put("where", _of_whole, "self", "Scalar", "ScalarSelf", "ScalarOther")
    put("round floor ceil trunc sign zeros ones full zeros_like ones_like full_like new_zeros new_ones "
        "new_full", _rounded)  # fmt: skip
    put("logical_or bitwise_or", _either, "default", "Tensor")
    put("logical_or_ bitwise_or_ __ior__", _or_more)
    put("logical_not bitwise_not", _not, "default")
    put("isnan isinf", _missing, "default")
    return found


_RULES = _rules()
_SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default,
         aten.count_nonzero.dim_IntList}  # fmt: skip
_MEANS = {aten.mean.default, aten.mean.dim}
