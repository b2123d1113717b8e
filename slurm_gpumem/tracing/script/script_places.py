"""Which layer is at work in a script: its models are known when they are first called."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slurm_gpumem.summaries.types import Layer
from slurm_gpumem.tracing.engine.module_stack import CURRENT_NODE, Places, shapes


class Root:
    """A model that the script calls itself, not from inside another one.

    The script may drop it, as it does with the model of one fold before the next: it is not kept alive.
    """

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self._module = weakref.ref(module)
        self.kind = type(module).__name__
        self.prefix = prefix
        self.trained = False
        self.smaller = False
        """Whether a larger model of its kind was trained before it."""
        self.inputs: Any = None
        """Shapes of its first inputs, in training where it was trained."""
        self.measure()

    def measure(self) -> None:
        """Count its parameters, while it is there: layers without a shape get theirs on the way."""
        module = self.module
        if module is not None:
            unique = {id(p): p for p in nn.Module.parameters(module) if not is_lazy(p)}
            # While torch.jit records a model, sizes are tensors.
            self.parameters = sum(int(p.numel()) for p in unique.values())
            self.trainable = sum(int(p.numel()) for p in unique.values() if p.requires_grad)

    @property
    def module(self) -> Optional[nn.Module]:
        """The model; None where the script has dropped it."""
        return self._module()


class ScriptPlaces(Places):
    """Follows the layers of every model that is called; each one's first training pass is written down."""

    def __init__(
        self, called: Callable[[Root, Any], None], turns: Callable[[bool], None] = lambda smaller: None
    ) -> None:
        super().__init__(nn.Module())
        self.roots: Dict[int, Root] = {}
        self._dropped: List[Root] = []
        self._seen_layers: Tuple[Layer, ...] = ()
        self._called = called
        self._turns = turns
        """Called where a model is trained first that is smaller than one before it, or another goes on."""
        self._root: Optional[Root] = None
        self.depth = 0
        self.named_inputs: Dict[str, Any] = {}
        """What the model is called with by name; hooks get the rest."""

    def _before(self, module: nn.Module, args: Any) -> None:
        again = CURRENT_NODE() is not None and id(module) in self._names  # a checkpoint computes it again
        if self.depth == 0 and not again:
            self._begin(module, args)
        self.depth += 1
        self._names.setdefault(id(module), type(module).__name__)
        super()._before(module, args)

    def _begin(self, module: nn.Module, args: Any) -> None:
        args, self.named_inputs = (args, self.named_inputs), {}
        root = self.roots.get(id(module))
        if root is None:
            prefix = "" if not self.all_roots() else f"{type(module).__name__}."
            parts = []
            for name, part in module.named_modules():
                self._names[id(part)] = prefix + name
                parts.append(id(part))
            root = self.roots[id(module)] = Root(module, prefix)
            weakref.finalize(module, self._drop, id(module), parts).atexit = False
        training = module.training and torch.is_grad_enabled()
        if training and not root.trained:
            if not any(one.trained for one in self.all_roots()):
                # What was seen without training counts only where there is none.
                self.rows.clear()
                self._seen_layers = ()
            others = [one for one in self.all_roots() if one.trained and one.kind == root.kind]
            root.smaller = any(one.parameters > root.parameters for one in others)
            self._turns(root.smaller)
            root.trained = self.writing = True
            root.inputs = shapes(args)
        else:
            if training and not root.smaller:
                self._turns(False)  # they are trained side by side
            self.writing = root.inputs is None and not any(one.trained for one in self.all_roots())
            root.inputs = root.inputs or shapes(args)
        self._root = root
        self._called(root, args)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        writing = self.writing
        super()._after(module, args, output)
        self.depth = max(0, self.depth - 1)
        if self.depth == 0:
            if writing:
                self._seen_layers += super().layers()
                self.rows.clear()
                if self._root is not None:
                    self._root.measure()
            self.writing = False
            self._stack.clear()
            self._open.clear()

    def _drop(self, key: int, parts: List[int]) -> None:
        """The script has dropped a model: others may have its address, and those of its layers."""
        self._dropped.append(self.roots.pop(key))
        for part in parts:
            self._names.pop(part, None)

    def layers(self) -> Tuple[Layer, ...]:
        """What was written down when it was seen: the model may be gone."""
        return self._seen_layers

    def all_roots(self) -> List[Root]:
        """Those that the script has, and those that it had."""
        return [*self._dropped, *self.roots.values()]

    def main_root(self) -> Optional[Root]:
        """The largest model that was trained; the largest at all where none was; one that is there."""
        found = self.all_roots()
        trained = [root for root in found if root.trained]
        return max(
            trained or found, key=lambda root: (root.parameters, root.module is not None), default=None
        )
