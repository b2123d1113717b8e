"""FakeTensor's own answer: a model run on fake tensors, the storages that are alive added up. Needs torch.

As the publication's scripts do it: one forward and one backward pass of the sum of the output; gradients are
counted, and weights only where an operator looks at them in another shape; no optimizer. All tensors are on
the CPU device: PyTorch without CUDA cannot differentiate fake CUDA tensors. Sizes are the same there but for
attention kernels and dropout masks.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from slurm_gpumem.units import MIB


class _Alive(TorchDispatchMode):
    """Bytes of the storages that operators returned and that still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: Dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tree_map_only(FakeTensor, self._seen, made)
        return made

    def _seen(self, tensor: FakeTensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known[key] = storage.nbytes()
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.bytes -= self._known.pop(key, 0)


def live_peak_mib(model: nn.Module, make_inputs: Callable[[], Dict[str, Tensor]]) -> float:
    """Peak of live fake tensors over a forward and a backward pass; the model itself is a real one."""
    with FakeTensorMode(allow_non_fake_inputs=True), _Alive() as alive:
        _tensor(model(**make_inputs())).sum().backward()
    return float(alive.peak / MIB)


def image_batch(batch: int, size: int, name: str = "x") -> Dict[str, Tensor]:
    """Images as the publication's scripts make them: with a gradient of their own."""
    # A clone, as their copy to the GPU is one: both live.
    return {name: torch.rand(batch, 3, size, size, requires_grad=True).clone()}


def _tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    logits: Tensor = output["logits"] if "logits" in output else next(iter(output.values()))
    return logits
