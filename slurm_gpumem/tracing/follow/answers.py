"""What is kept of a model's answers, and answers made of it: the same shapes, and no memory meanwhile."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.engine.mask_statistics import mark_whole, may_be_whole
from slurm_gpumem.tracing.follow.model_state import DEEPEST


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
