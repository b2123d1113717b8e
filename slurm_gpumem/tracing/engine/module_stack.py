"""Which layer is running: a stack in the forward pass, the autograd node's number in the backward pass."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from slurm_gpumem.summaries.types import Layer, Shape

CURRENT_NODE = getattr(torch._C, "_current_autograd_node", lambda: None)
_SEQUENCE = getattr(torch._C._autograd, "_get_sequence_nr", None)


class Places:
    """Follows forward calls of a model's layers; on the first pass it also records the layers."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: List[str] = []
        self._marks: List[int] = [-1]
        self._marked: List[str] = [""]
        self._handles: List[Any] = []
        self.rows: List[Dict[str, Any]] = []
        self._open: List[Optional[int]] = []
        self.writing = True

    def __enter__(self) -> Places:
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def now(self) -> str:
        """Name of the innermost running layer; in the backward pass, the layer whose gradient is computed."""
        if self._stack:
            return self._stack[-1]
        node = CURRENT_NODE()
        if node is None:
            return ""
        number = node._sequence_nr()
        return self._marked[bisect_right(self._marks, number) - 1]

    @property
    def inside(self) -> bool:
        """Whether a model's forward pass is running."""
        return bool(self._stack)

    def reset(self) -> None:
        """A new forward pass begins; sequence numbers only grow, so old ones are not needed again."""
        del self._marks[1:], self._marked[1:], self._stack[:]

    def _mark(self) -> None:
        """Nodes made from here on belong to the layer on top of the stack."""
        if _SEQUENCE is None:
            return
        number, name = _SEQUENCE(), self._stack[-1] if self._stack else ""
        if number == self._marks[-1]:
            self._marked[-1] = name
        elif number > self._marks[-1]:
            self._marks.append(number)
            self._marked.append(name)

    def _before(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            return
        if self.writing:
            self._open.append(len(self.rows))
            # A layer that `forward` makes itself, as in `nn.ReLU()(x)`, is gone before the rows are read.
            self.rows.append(
                {"name": name, "module": module, "depth": len(self._stack), "inputs": shapes(args)}
            )
        self._stack.append(name)
        self._mark()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in self._names or not self._stack:
            return
        self._stack.pop()
        self._mark()
        if self.writing and self._open:
            row = self._open.pop()
            if row is not None:
                self.rows[row]["outputs"] = shapes(output)
            if not self._stack and not self._names[id(module)]:
                self.writing = False  # the model's own first pass is over

    def layers(self) -> Tuple[Layer, ...]:
        """What the first forward pass showed, parents before their children."""
        seen: Dict[str, bool] = {}
        counted: Dict[int, bool] = {}
        layers = []
        for row in self.rows:
            module = row["module"]
            params = trainable = 0
            for parameter in own_parameters(module):
                if id(parameter) not in counted:
                    counted[id(parameter)] = True
                    count = int(parameter.numel())  # a tensor while torch.jit records a model
                    params += count
                    trainable += count if parameter.requires_grad else 0
            kernel = getattr(module, "kernel_size", None)
            layers.append(
                Layer(
                    kind=type(module).__name__,
                    outputs=row.get("outputs", ()),
                    inputs=row["inputs"],
                    params=params,
                    trainable=trainable > 0 or params == 0,
                    depth=row["depth"],
                    name=row["name"],
                    leaf=not any(module.children()),
                    repeated=row["name"] in seen,
                    kernel=_sizes(kernel),
                )
            )
            seen[row["name"]] = True
        return tuple(layers)


def own_parameters(module: nn.Module) -> List[nn.Parameter]:
    """Those of the module itself, also where its class has a `parameters` of its own."""
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _sizes(value: Any) -> Optional[Shape]:
    if isinstance(value, int):
        return (value,)
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return None


def shapes(value: Any, limit: int = 8) -> Tuple[Shape, ...]:
    """Shapes of all tensors in a nested value, at most `limit`."""
    found: List[Shape] = []
    waiting = [value]
    while waiting and len(found) < limit:
        item = waiting.pop()
        if isinstance(item, Tensor):
            found.append(tuple(int(size) for size in item.shape))
        elif isinstance(item, (list, tuple)):
            waiting.extend(reversed(item))
        elif isinstance(item, dict):
            waiting.extend(reversed(list(item.values())))
    return tuple(found)
