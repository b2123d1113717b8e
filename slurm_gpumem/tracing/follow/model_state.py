"""What a call's memory depends on besides the shapes of plain inputs: the model's own state, and what objects
hold.

Weights that were frozen are trained from some epoch on, a growing network has another depth: the same inputs
then need more. A number that takes many values counts steps, and decides nothing.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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
