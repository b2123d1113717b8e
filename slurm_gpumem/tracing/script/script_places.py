"""Which layer is at work in a script: its models are known when they are first called."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slurm_gpumem.tracing.places import Places, shapes


class Root:
    """A model that the script calls itself, not from inside another one."""

    def __init__(self, module: nn.Module, places: Places, prefix: str) -> None:
        self.module = module
        self.places = places
        self.prefix = prefix
        self.parameters = sum(p.numel() for p in module.parameters() if not is_lazy(p))
        self.trained = False
        self.inputs: Any = None
        """Shapes of its first inputs in training."""


class ScriptPlaces(Places):
    """Follows the layers of every model that is called; each one's first training pass is written down."""

    def __init__(self, called: Callable[[Root, Any], None]) -> None:
        super().__init__(nn.Module())
        self.roots: Dict[int, Root] = {}
        self._called = called
        self._root: Optional[Root] = None
        self.depth = 0
        self.keywords: Dict[str, Any] = {}
        """Arguments by name of the call at work: hooks for all modules get the others only."""

    def _before(self, module: nn.Module, args: Any) -> None:
        if self.depth == 0:
            self._begin(module, args)
        self.depth += 1
        self._names.setdefault(id(module), type(module).__name__)
        self._modules.setdefault(self._names[id(module)], module)
        super()._before(module, args)

    def _begin(self, module: nn.Module, args: Any) -> None:
        root = self.roots.get(id(module))
        if root is None:
            prefix = "" if not self.roots else f"{type(module).__name__}."
            for name, part in module.named_modules():
                self._names[id(part)] = prefix + name
                self._modules[prefix + name] = part
            root = self.roots[id(module)] = Root(module, self, prefix)
        training = module.training and torch.is_grad_enabled()
        self.writing = training and not root.trained
        if training and not root.trained:
            root.trained = True
            root.inputs = shapes(args) or shapes(self.keywords)
        self._root = root
        self._called(root, args)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        super()._after(module, args, output)
        self.depth = max(0, self.depth - 1)
        if self.depth == 0:
            self.writing = False
            self._stack.clear()
            self._open.clear()

    def main_root(self) -> Optional[Root]:
        """The largest model that was trained; the largest at all where none was."""
        trained: List[Root] = [root for root in self.roots.values() if root.trained]
        return max(trained or list(self.roots.values()), key=lambda root: root.parameters, default=None)
