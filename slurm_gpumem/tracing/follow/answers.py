"""What a model's call depends on, what is kept of its answer, and answers made of that.

They have the same shapes, and take no memory meanwhile.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.engine.unknown_values import mark_whole, may_be_whole

# What a call's memory depends on besides the shapes of plain inputs: the model's own state, and what objects
# hold.
#
# Weights that were frozen are trained from some epoch on, a growing network has another depth: the same
# inputs then need more. A number that takes many values counts steps, and decides nothing.


_PLAIN = (bool, int, str)
_MANY = 8
"""Values of one attribute from which it is taken for a counter."""
DEEPEST = 3
"""Objects in objects that are looked through for tensors."""
_LARGEST = 500
"""Values of an object from which it is known by its address only."""


class ModelStates:
    """Remembers which attributes of models change all the time."""

    def __init__(self) -> None:
        self._values: weakref.WeakKeyDictionary[nn.Module, Dict[str, Set[Any]]] = weakref.WeakKeyDictionary()

    def of(self, model: nn.Module) -> int:
        """The same number while the model would do the same with the same inputs."""
        found: List[Any] = []
        with torch._C.DisableTorchFunction():
            for part in nn.Module.modules(model):
                found.append(type(part))
                found += [one.requires_grad for one in part._parameters.values() if one is not None]
                found += self._attributes(part)
        return hash(tuple(found))

    def _attributes(self, part: nn.Module) -> List[Tuple[str, Any]]:
        seen = self._values.get(part)
        if seen is None:
            seen = self._values[part] = {}
        found = []
        for name, value in vars(part).items():
            if type(value) not in _PLAIN or name.startswith("_"):
                continue
            values = seen.setdefault(name, set())
            if len(values) < _MANY:
                values.add(value)
                found.append((name, value))
        return found


def kept_by(model: nn.Module) -> Optional[List[Tuple[nn.Module, str, Tensor]]]:
    """Tensors that a call leaves in attributes, where a loss may find them; None where it leaves more.

    Hooks may take what layers give, and lists what is computed. A weight that is made from parameters, such
    as `weight_g`, is nothing that a call leaves.
    """
    found = []
    for part in nn.Module.modules(model):
        if part._forward_hooks:
            return None
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                if value.grad_fn is not None and not any(
                    one.startswith(f"{name}_") for one in part._parameters
                ):
                    found.append((part, name, value))
            elif type(value) in (list, dict):
                inside = value.values() if type(value) is dict else value
                if any(isinstance(one, Tensor) and one.grad_fn is not None for one in inside):
                    return None
    return found


def described(value: Any, depth: int = 0) -> Tuple[Any, ...]:
    """A value of a call's inputs: shapes of tensors, plain values, and of objects what they hold.

    An object is not known by its address alone: that of a batch is the next batch's when it is gone.
    """
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, (int, float, str, bool, type(None))):
        return (value,)
    inside = (
        None if depth >= DEEPEST or isinstance(value, (type, nn.Module)) else getattr(value, "__dict__", None)
    )
    if not isinstance(inside, dict):
        return (id(value),)
    leaves, spec = pytree.tree_flatten(inside)
    if len(leaves) > _LARGEST:
        return (id(value),)
    return (type(value), str(spec), tuple(described(leaf, depth + 1) for leaf in leaves))


def tensors_in(value: Any, depth: int = 0) -> List[Tensor]:
    """Tensors of a call's inputs, those that objects hold among them."""
    found: List[Tensor] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif depth < DEEPEST and not isinstance(leaf, (type, nn.Module)):
            inside = getattr(leaf, "__dict__", None)
            if isinstance(inside, dict) and len(inside) <= _LARGEST:
                found += tensors_in(inside, depth + 1)
    return found


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor of an answer, without it."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    on_gpu: bool
    needs_gradient: bool
    whole: bool
    """Whether its numbers may be whole."""


@dataclass(frozen=True, eq=False)
class _Shell:
    """An object of an answer that has tensors, without them: a distribution with its parameters."""

    kind: type
    fields: Dict[str, Any]


class Answer(NamedTuple):
    """What a call gave."""

    leaves: List[Any]
    spec: Any
    left: List[Tuple[weakref.ref[nn.Module], str, Any]]
    """And left in attributes of the model and its layers."""


def kept_of(value: Any, seen: Dict[int, Leaf], depth: int = 0) -> Any:
    """What is kept of a value: nothing that holds memory."""
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunction():
            on_gpu = value.device.type == "meta"
        made = Leaf(tuple(value.shape), value.dtype, on_gpu, value.requires_grad, may_be_whole(value))
        return seen.setdefault(id(value), made)
    if depth > DEEPEST or isinstance(value, (type, nn.Module)) or not hasattr(value, "__dict__"):
        return value
    fields = {
        name: pytree.tree_map(lambda one: kept_of(one, seen, depth + 1), field)
        for name, field in vars(value).items()
    }
    kept = (one for field in fields.values() for one in pytree.tree_leaves(field))
    return _Shell(type(value), fields) if any(isinstance(one, (Leaf, _Shell)) for one in kept) else value


class Again:
    """Makes what is kept of an answer into an answer."""

    def __init__(self, asked: List[Tensor]) -> None:
        self._asked = asked
        """Inputs whose gradients may be asked for: a gradient penalty does."""
        self._tensors: Dict[int, Tensor] = {}

    def made(self, leaf: Any) -> Any:
        if isinstance(leaf, _Shell):
            made: Any = object.__new__(leaf.kind)
            for name, field in leaf.fields.items():
                vars(made)[name] = pytree.tree_map(self.made, field)
            return made
        if not isinstance(leaf, Leaf):
            return leaf
        if id(leaf) not in self._tensors:  # a tensor that has two names is one
            linked = leaf.needs_gradient and self._asked
            self._tensors[id(leaf)] = _Linked.apply(leaf, *self._asked) if linked else _tensor(leaf)
        return self._tensors[id(leaf)]


class _Linked(torch.autograd.Function):
    """From the inputs of a call that is not run to its answer: there are gradients, of the right shapes, and
    gradients of these."""

    @staticmethod
    def forward(ctx: Any, leaf: Leaf, *inputs: Tensor) -> Any:
        ctx.save_for_backward(*inputs)
        return _tensor(leaf).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs = ctx.saved_tensors
        return (None, *(_Linked.apply(kept_of(one.detach(), {}), *inputs) for one in inputs))


def _tensor(leaf: Leaf) -> Tensor:
    device = "cuda" if leaf.on_gpu else "cpu"
    if not leaf.needs_gradient:
        made = torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
        if leaf.whole:
            mark_whole(made)
        return made
    base = torch.empty((), dtype=leaf.dtype, device=device, requires_grad=True)
    return base.expand(leaf.shape).clone()


# Calls of a model whose inputs grow by the same each time, as in a loop that writes a text token by token:
# only some of them are run. One is run whenever its inputs are a quarter longer than those of the last one
# that was. Between them the answers have the shapes that follow from their growth. None is left out that
# might set a new peak, nor where calls leave something behind: a loop that collects what it is answered, or
# its graph, is run as it is.


_STEADY = 3
"""Calls that grew alike before one is left out."""
_LONGER = 1.25
_LEFT_BEHIND = 0.1
"""Of what a call needs, before it is taken for something that stays."""

Dims = Tuple[int, ...]
Shapes = Tuple[Optional[Dims], ...]
"""Of the values of a call or of an answer; None for what is no tensor."""


@dataclass(frozen=True)
class Call:
    """A call before it is run."""

    family: Any
    """The same for calls that differ in the sizes of their inputs only."""
    shapes: Shapes
    phase: int
    live_bytes: int


@dataclass
class _Series:
    last: Call
    """The last call, run or not."""
    step: Dims = ()
    steady: int = 0
    """How many calls have grown by this step."""
    ran: Optional[Call] = None
    """The last call that was run ..."""
    answer: Shapes = ()
    answer_step: Optional[Dims] = None
    """... and by what its answer grows with each call; None: not known."""
    nbytes: int = 0
    """All that it has allocated."""
    collects: bool = False


class GrowingCalls:
    """Remembers calls, by their families."""

    def __init__(self) -> None:
        self._series: Dict[Any, _Series] = {}

    def grows(self, call: Call) -> bool:
        """Note a call; whether the one before it had smaller inputs, and no step of training was between."""
        series = self._series.setdefault(call.family, _Series(call))
        step = _difference(series.last, call)
        series.steady = series.steady + 1 if step and step == series.step else 0
        series.step, series.last = step, call
        return bool(step)

    def answer(self, call: Call, peak_bytes: int) -> Optional[List[Optional[Dims]]]:
        """The shapes of the answer of a call that was noted; None: it must be run."""
        series = self._series[call.family]
        ran = series.ran
        if ran is None or series.steady < _STEADY or series.answer_step is None or series.collects:
            return None
        before, now = _flat(ran.shapes), _flat(call.shapes)
        longest = max(to / max(start, 1) for start, to in zip(before, now))
        if longest >= _LONGER or call.live_bytes + _LONGER**2 * series.nbytes > peak_bytes:
            return None
        steps = _steps(before, now, series.step)
        return None if steps is None else _moved(series.answer, series.answer_step, steps)

    def ran(self, call: Call, answer: Shapes, nbytes: int) -> None:
        """A call was run, and this is what it was answered."""
        series = self._series[call.family]
        before = series.ran
        if before is not None and series.step and series.steady:
            steps = _steps(_flat(before.shapes), _flat(call.shapes), series.step)
            series.answer_step = _growth(series.answer, answer, steps)
            left = call.live_bytes - before.live_bytes
            series.collects = series.steady > 1 and left > _LEFT_BEHIND * series.nbytes
        series.ran, series.answer, series.nbytes = call, answer, nbytes


def _flat(shapes: Shapes) -> Dims:
    return tuple(size for shape in shapes if shape is not None for size in shape)


def _difference(before: Call, now: Call) -> Dims:
    """By what the inputs have grown; nothing where they have not, or a step of training was between them."""
    first, second = _flat(before.shapes), _flat(now.shapes)
    step = tuple(to - start for start, to in zip(first, second))
    same = len(first) == len(second) and before.phase == now.phase
    return step if same and min(step, default=0) >= 0 and any(step) else ()


def _steps(before: Dims, now: Dims, step: Dims) -> Optional[int]:
    """How often the inputs have grown by a step; None where that is not all that differs: another batch."""
    steps = next((to - start) // by for start, to, by in zip(before, now, step) if by)
    exact = all(to - start == steps * by for start, to, by in zip(before, now, step))
    return steps if exact else None


def _growth(before: Shapes, now: Shapes, steps: Optional[int]) -> Optional[Dims]:
    """Of an answer in one step; None where it does not grow evenly, or is another kind of answer."""
    ranks, ranks_now = ([shape and len(shape) for shape in answer] for answer in (before, now))
    if not steps or ranks != ranks_now:
        return None
    changes = [to - start for start, to in zip(_flat(before), _flat(now))]
    return None if any(change % steps for change in changes) else tuple(by // steps for by in changes)


def _moved(answer: Shapes, by: Dims, steps: int) -> List[Optional[Dims]]:
    """An answer's shapes some steps later."""
    growth = iter(by)
    return [
        None if shape is None else tuple(size + steps * next(growth) for size in shape) for shape in answer
    ]
