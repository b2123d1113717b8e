"""What a real training step allocates, traced on meta tensors: the yardstick for the structural estimator.

Every operation that PyTorch runs is seen by a dispatch mode; storages are noted when they appear and,
through a finalizer, when they are gone. Gradients are summed out of place under such a mode, so a trace
is a little above what a GPU allocates.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OPTIMIZERS: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}


class Recorder(TorchDispatchMode):
    """Counts the bytes of living meta storages, each rounded up to 512."""

    def __init__(self) -> None:
        super().__init__()
        self.live: Dict[int, int] = {}
        self.allocated = self.peak = 0

    def note(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.device.type != "meta":
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        size = -(-storage.nbytes() // 512) * 512
        self.live[key] = size
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.allocated -= self.live.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.note(leaf)
        return result


def peak_of_training(build: Callable[[], nn.Module], batch: Callable[[], Tensor], optimizer: str) -> int:
    """Peak of allocated bytes over two training steps with cross-entropy."""
    recorder = Recorder()
    with torch.device("meta"):
        model = build().train()
        for tensor in (*model.parameters(), *model.buffers()):
            recorder.note(tensor)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        with recorder:
            for _ in range(2):
                x = batch()
                target = torch.zeros(x.shape[0], dtype=torch.int64)
                chosen.zero_grad()
                out = model(x)
                loss = nn.functional.cross_entropy(out, target)
                loss.backward()
                chosen.step()
    return recorder.peak
