"""Values of some meta tensors: masks, positions and other small tensors that models read to make decisions.

A small tensor that comes from constants, or from a batch with real values, is also computed on the CPU. A
larger one that was copied from the CPU keeps its values too (a graph's adjacency matrix, a data set's mask),
through what is cheap: views, casts, comparisons and arithmetic. A value that is read but not known is made
up, and the trace says so.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.tracing.engine.value_dependent_code import loop_answer, wanted

aten = torch.ops.aten


LARGEST = {"float": 1 << 14, "other": 1 << 20}
"""Number of elements up to which values are kept, for floating-point and for other tensors."""
_LARGEST_COPIED = 1 << 24
"""The same for tensors that came from the CPU."""
_MOST_COMPUTED = 1 << 29
"""Elements of such large tensors that are computed in all: a few seconds."""
_COPIED = "_gpumem_copied"
"""Marks values on the CPU that came from there."""
_LOST = "_gpumem_lost"
"""Marks a storage of values part of which was overwritten with unknown ones."""
_NAME = "_gpumem_value"
MADE_UP = "_gpumem_made_up"
"""Marks a value that follows from a made-up one."""
_LIKE = {
    "aten::ones_like": 1,
    "aten::zeros_like": 0,
    "aten::new_ones": 1,
    "aten::new_zeros": 0,
    "aten::_efficientzerotensor": 0,
}
_WITHOUT = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::randn",
            "aten::rand", "aten::new_empty_strided", "aten::empty_permuted"}  # fmt: skip
_EACH = "aten::_foreach_"
_FILLED = (aten.fill_.Scalar, aten.zero_.default)
CPU = torch.device("cpu")
_DIFFERENT = {aten.eq.Scalar: False, aten.eq.Tensor: False, aten.ne.Scalar: True, aten.ne.Tensor: True}
"""`if loss == 0: continue`: two numbers of which one is not known are hardly ever the same."""


def is_wrapped(tensor: Tensor) -> bool:
    """Whether it is a transform's (vmap, grad, jvp): the tensor inside has the storage."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def value_of(tensor: Any) -> Optional[Tensor]:
    """The values of a meta tensor, if known."""
    value: Optional[Tensor] = getattr(tensor, _NAME, None)
    if value is None and _is_empty(tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    if value is not None and value.layout == torch.strided and hasattr(value.untyped_storage(), _LOST):
        return None
    return value


def _is_empty(tensor: Any) -> bool:
    """Whether it has no values at all, and not only none yet (lazy layers)."""
    if not isinstance(tensor, Tensor) or is_lazy(tensor):
        return False
    return tensor.layout == torch.strided and tensor.numel() == 0


def give(tensor: Tensor, value: Tensor) -> None:
    """Remember a meta tensor's values."""
    if small(value):
        setattr(tensor, _NAME, value)


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def small(tensor: Tensor) -> bool:
    """Whether a tensor's values are worth keeping."""
    kind = "float" if _is_real(tensor.dtype) else "other"
    return tensor.numel() <= LARGEST[kind]


def follow(func: Any, args: Any, kwargs: Dict[str, Any], result: Any) -> None:
    """After an operator ran on meta tensors: run it on their values too, if all are known."""
    name = func._schema.name
    if name in _WITHOUT:
        whole = isinstance(result, Tensor) and not _is_real(result.dtype)
        if whole and result.device.type == "meta" and small(result):
            give(result, torch.zeros(result.shape, dtype=result.dtype))  # a part of it may be written next
        return
    if name in _LIKE:
        if isinstance(result, Tensor) and result.device.type == "meta" and small(result):
            give(result, torch.full(result.shape, _LIKE[name], dtype=result.dtype))
        return
    if result is None and name.startswith(_EACH) and args and isinstance(args[0], (tuple, list)):
        _follow_each(func, args, kwargs)
        return
    if is_view(func) and isinstance(args[0], Tensor) and value_of(args[0]) is None:
        return  # new tensors, of which nothing is known
    outputs = [result] if isinstance(result, Tensor) else result
    if not isinstance(outputs, (tuple, list)) or not outputs:
        return
    if not all(isinstance(o, Tensor) for o in outputs) or all(o.device.type != "meta" for o in outputs):
        return
    large = not all(small(o) for o in outputs)
    if large and not _worth_it(func, args, outputs):
        _forget(outputs)
        return
    if func is aten.copy_.default and value_of(args[0]) is None:
        source = value_of(args[1]) if args[1].device.type == "meta" else args[1]
        if source is not None and source.shape == args[0].shape:  # all of it is overwritten
            setattr(args[0], _NAME, source.to(args[0].dtype, copy=True))
        return
    if func in _FILLED and value_of(args[0]) is None:
        number = args[1] if len(args) > 1 else 0
        give(args[0], torch.full(args[0].shape, number, dtype=args[0].dtype))
        return
    if func is aten.scatter_.src and _order(args) is not None:
        setattr(args[0], _NAME, _order(args))
        return
    known: List[bool] = []
    real_args = _real(args, known)
    if not all(known):
        _forget(outputs)
        if func in _DIFFERENT and outputs[0].dim() == 0 and args[0].is_floating_point():
            give(outputs[0], torch.tensor(_DIFFERENT[func]))
            setattr(outputs[0], MADE_UP, True)
        return
    real_kwargs = {key: _real(value, known) for key, value in kwargs.items()}
    if not all(known):
        return
    if "device" in real_kwargs:
        real_kwargs["device"] = CPU
    try:
        computed = func(*real_args, **real_kwargs)
    except (RuntimeError, NotImplementedError, IndexError, ValueError):
        _forget(outputs)  # the CPU cannot do it: then the values are unknown
        return
    made_up = any(hasattr(arg, MADE_UP) for arg in args)
    for output, number in zip(outputs, [computed] if isinstance(computed, Tensor) else computed):
        if output.shape == number.shape:
            setattr(output, _NAME, number)
            if made_up:
                setattr(output, MADE_UP, True)
            if large or _is_copied(_first(args)):  # parts that are put together again later
                setattr(number, _COPIED, True)


def _follow_each(func: Any, args: Any, kwargs: Dict[str, Any]) -> None:
    """`_foreach_add_` and its like write into each tensor of a list: an optimizer counts its steps so."""
    for number, tensor in enumerate(args[0]):
        if getattr(tensor, _NAME, None) is None:
            continue
        known: List[bool] = []
        own = [[value[number]] if isinstance(value, (tuple, list)) else value for value in args[1:]]
        real = _real([[tensor], *own], known)
        if all(known):
            func(*real, **kwargs)
        else:
            forget(tensor)


class _Spent:
    """Elements of large tensors that were computed so far."""

    elements = 0


def _worth_it(func: Any, args: Any, outputs: Any) -> bool:
    """Whether an operator on large tensors is followed: a copy from the CPU, and what is cheap then."""
    count = sum(output.numel() for output in outputs)
    first = _first(args)
    if not isinstance(first, Tensor) or any(o.numel() > _LARGEST_COPIED for o in outputs):
        return False
    if func is aten._to_copy.default and first.device.type == "cpu":
        if isinstance(first, torch.nn.Parameter):
            return False  # weights: nobody's sizes depend on them
    elif is_view(func):
        return value_of(first) is not None  # an expanded mask takes nothing
    elif not _is_copied(first) or (func not in _CHEAP and torch.Tag.pointwise not in func.tags):
        return False
    _Spent.elements += count
    return _Spent.elements <= _MOST_COMPUTED


def _first(args: Any) -> Any:
    """An operator's first argument, or the first of a list."""
    first = args[0] if args else None
    return first[0] if isinstance(first, (list, tuple)) and first else first


def _is_copied(first: Any) -> bool:
    """Whether its values came from the CPU."""
    return bool(getattr(getattr(first, _NAME, None), _COPIED, False))


@cache
def is_view(func: Any) -> bool:
    """Whether an operator's results lie in the memory of what it is given."""
    aliases = [argument.alias_info for argument in func._schema.arguments if argument.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def compute(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """An operator's result from values alone, on meta tensors; None if a value is unknown."""
    known: List[bool] = []
    real_args = _real(args, known)
    real_kwargs = {key: _real(value, known) for key, value in kwargs.items()}
    if not all(known):
        return None
    return _to_meta(func(*real_args, **real_kwargs))


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        twin = torch.empty(value.shape, dtype=value.dtype, device="meta")
        give(twin, value)
        return twin
    if isinstance(value, (tuple, list)):
        return type(value)(_to_meta(item) for item in value)
    return value


def _real(value: Any, known: List[bool]) -> Any:
    """A value with real values for its meta tensors; `known` gets False if there are none."""
    if isinstance(value, Tensor):
        if value.device.type != "meta":
            return value
        number = value_of(value)
        known.append(number is not None)
        return number
    if isinstance(value, (list, tuple)):
        items = []
        for item in value:
            items.append(_real(item, known))
            if known and not known[-1]:
                break
        return type(value)(items) if not isinstance(value, torch.Size) else value
    if isinstance(value, torch.device):
        return CPU
    return value


def _order(args: Any) -> Optional[Tensor]:
    """`order.scatter_(0, index, numbers)` that overwrites all of a list: how packed sequences are put back
    into their order."""
    target, dim, *given = args
    index, numbers = (value_of(one) if one.device.type == "meta" else one for one in given)
    if index is None or numbers is None or target.dim() != 1 or index.unique().numel() != target.numel():
        return None
    return torch.empty(target.shape, dtype=target.dtype).scatter_(dim, index, numbers)


def forget(tensor: Tensor) -> None:
    """A tensor was written by something that nobody followed."""
    if tensor.device.type == "meta":
        _forget([tensor])


def _forget(outputs: Any) -> None:
    """A tensor that was overwritten with unknown values has no known ones any more, nor has its base."""
    for output in outputs:
        value = value_of(output)
        if value is not None:
            setattr(output, _NAME, None)
            if value.layout == torch.strided:
                setattr(value.untyped_storage(), _LOST, True)


def made_up_numbers(recorder: Recording, tensor: Tensor) -> None:
    """Code reads numbers that nobody knows; whole ones, inside of a layer, are often sizes."""
    recorder.guess.numbers = True
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    if whole and recorder.places.inside:
        where = recorder.places.now() or "the model"
        recorder.warn_once(
            "reads numbers",
            f"{where} reads whole numbers that it computed on the GPU, and a trace does not have them: sizes "
            "that follow from them, and cuDNN's workspaces for such sizes, may be far from what was traced. "
            "Let one run be measured: gpusbatch without --trace",
        )


def read(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`tensor.item()`: the value, or a made-up one: the recorder's guess, or one."""
    tensor = args[0]
    if tensor.device.type != "meta":
        return func(*args, **kwargs)
    number = value_of(tensor)
    where = recorder.places.now() or "the training step"
    truth = tensor.dtype == torch.bool
    guessed = number is None or getattr(tensor, MADE_UP, False)
    check = wanted() if truth and guessed else None
    if check is not None:
        recorder.assume(f"a check of values in {where} is taken as passed")
        return check
    if number is not None:
        if guessed:
            recorder.assume(f"a value that {where} compares is not known; took {number.item():.0f}")
            if truth:
                return loop_answer(recorder, bool(number.item()))
        return number.item()
    made_up: Any = recorder.guess.truth if truth else 1
    if tensor.is_floating_point():
        made_up = recorder.guess.next_number()
    if getattr(tensor, "_gpumem_choices", None) is not None:
        made_up = 0  # an index: the first choice is always there
    made_up = loop_answer(recorder, made_up)
    recorder.guess.used |= truth
    made_up_numbers(recorder, tensor)
    recorder.assume(f"a value that {where} reads is not known; took {made_up:.0f}")
    return made_up


_CHEAP = {aten._to_copy.default, aten.clone.default, aten.cat.default, aten.index.Tensor,
          aten.index_select.default, aten.gather.default}  # fmt: skip
READ = {aten._local_scalar_dense.default: read, aten.item.default: read}
FOLLOWED = {
    aten._to_copy.default,
    aten.copy_.default,
    aten.clone.default,
    aten.split_with_sizes.default,
    aten._pack_padded_sequence.default,
    aten.add.Tensor,
    aten.where.self,
    aten.sort.default,
    aten.sort.stable,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_add.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.roll.default,
    aten.t.default,
    aten.transpose.int,
}
"""Operators that are handled elsewhere, whose values are tracked anyway."""


# -- Constants: `torch.tensor([…], device=x.device)`, and `torch.tensor([loss, other])`, read one by one ---

_PARTS = 3
"""Of a sparse tensor: indices, values, size."""
_MAY_HAVE_SOME = (Tensor, list, tuple)


@contextmanager
def known_constants() -> Iterator[None]:
    """Inside, tensors that are made from Python numbers on the meta device remember them."""
    originals = {(torch, "tensor"): torch.tensor, (torch, "as_tensor"): torch.as_tensor}
    new_tensor: Any = Tensor.new_tensor

    def keeping(make: Any) -> Any:
        def constant(data: Any, *args: Any, **kwargs: Any) -> Any:
            data = _on_cpu(data)
            made = make(data, *args, **kwargs)
            return _remember(made, make, data, args, kwargs)

        return constant

    def new(self: Tensor, data: Any, *args: Any, **kwargs: Any) -> Any:
        data = _on_cpu(data)
        made = new_tensor(self, data, *args, **kwargs)
        return _remember(made, torch.tensor, data, args, {**kwargs, "dtype": made.dtype})

    legacy: Any = Tensor.new

    def of_parts(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.layout == torch.sparse_coo and self.device.type != "cpu" and len(args) == _PARTS:
            # SparseAdam's way to make a sparse tensor, which meta tensors do not know.
            return torch.sparse_coo_tensor(*args, check_invariants=False)
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return new(self, args[0], dtype=self.dtype)  # numbers, not a size
        return legacy(self, *args, **kwargs)

    # Code that torch.jit.script compiles calls the operator, as before. PyTorch knows functions by their ids,
    # which other functions get when these are gone.
    compiled = torch.jit._builtins._get_builtin_table()
    ours = {name: keeping(make) for (_, name), make in originals.items()}
    for owner, name in originals:
        setattr(owner, name, ours[name])
        compiled[id(ours[name])] = f"aten::{name}"
    setattr(Tensor, "new_tensor", new)  # noqa: B010 - its type is not the same
    setattr(Tensor, "new", of_parts)  # noqa: B010
    try:
        yield
    finally:
        for (owner, name), make in originals.items():
            setattr(owner, name, make)
            del compiled[id(ours[name])]
        setattr(Tensor, "new_tensor", new_tensor)  # noqa: B010
        setattr(Tensor, "new", legacy)  # noqa: B010


def _remember(made: Any, make: Any, data: Any, args: Any, kwargs: Any) -> Any:
    """Make a constant again on the CPU, if it is one."""
    with torch._C.DisableTorchFunction():  # in a traced script they say that they are on "cuda"
        on_meta = made.device.type == "meta"
    if on_meta and _plain(data):
        options = {name: value for name, value in kwargs.items() if name in ("dtype",)}
        give(made, make(data, *args, **options, device="cpu"))
    return made


def _on_cpu(data: Any) -> Any:
    """A list with the numbers of its tensors: the constructor reads them where nobody can answer for them."""
    if not isinstance(data, (list, tuple)) or not any(isinstance(one, _MAY_HAVE_SOME) for one in data):
        return data
    return [one.detach().to("cpu") if isinstance(one, Tensor) else _on_cpu(one) for one in data]


def _plain(data: Any) -> bool:
    """Whether data are numbers, not tensors."""
    if isinstance(data, (list, tuple)):
        return all(_plain(item) for item in data)
    return isinstance(data, (bool, int, float, complex))
