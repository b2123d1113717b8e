"""A training in PyTorch's own FakeTensorMode: the most bytes that its tensors have at a time.

Runs where a trace would (`request.fake_run`), without the tracer. "cuda" is the CPU here: without a GPU, fake
CUDA tensors have no backward pass.
"""

from __future__ import annotations

import copy
import os
import sys
import time
import weakref
from typing import Any, Iterable

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from slurm_gpumem.tracing.loop import Plan, steps
from slurm_gpumem.tracing.losses import Loss
from slurm_gpumem.tracing.model.build import Builder
from slurm_gpumem.tracing.model.given import given_batches, given_loss, given_optimizer, given_step
from slurm_gpumem.tracing.model.pretrained import without_downloads
from slurm_gpumem.tracing.model.spec import TraceRequest
from slurm_gpumem.tracing.optimizers import make_optimizer
from slurm_gpumem.tracing.script.report_folder import Report


class LiveTensors(TorchDispatchMode):
    """Counts the storages that are alive; FakeTensorMode has no count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = WeakIdKeyDictionary()
        self._now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(tree_leaves(out))
        return out

    def add(self, values: Iterable[Any]) -> None:
        """Count the storages of these tensors, each once."""
        for value in values:
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
            if storage is not None and storage not in self._seen:
                self._seen[storage] = size = storage.nbytes()
                weakref.finalize(storage, self._gone, size)
                self._now += size
        self.peak = max(self.peak, self._now)

    def _gone(self, size: int) -> None:
        self._now -= size


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_device, args), **{name: _device(one) for name, one in (kwargs or {}).items()})


def _device(value: Any) -> Any:
    return "cpu" if isinstance(value, (str, torch.device)) and str(value)[:5] in ("cuda", "cuda:") else value


def main() -> None:
    """The request is the only argument; the answer goes where a trace's does."""
    report = Report(os.environ["GPUMEM_TRACE_DIR"])
    report.say(torch=str(torch.__version__))
    started, peak = time.monotonic(), _peak_bytes(TraceRequest.from_json(sys.argv[1]))
    report.put_summary("{}")
    report.say(done={"peak_bytes": peak, "seconds": time.monotonic() - started})


def _peak_bytes(request: TraceRequest) -> int:
    without_downloads(lambda said: None)  # the trace before has said it
    mode, live = FakeTensorMode(), LiveTensors()
    with _CudaIsCpu():
        with FakeCopyMode(mode):
            model = copy.deepcopy(Builder(request, lambda phase: None, lambda said: None).on_cpu().train())
        with mode, live:
            live.add([*model.parameters(), *model.buffers()])
            make = given_batches(request, model, None, lambda said: None)
            optimizer = make_optimizer(given_optimizer(request), model, model)
            for group in optimizer.param_groups:
                group["foreach"] = group.get("foreach") is not False  # the default on a GPU
            # The first step makes the optimizer's states, the second has them beside its activations.
            sizes, loss = [request.batch_size] * 2, Loss(given_loss(request))
            for _ in steps(Plan(model, make, loss, optimizer, sizes, step=given_step(request))):
                pass
    return live.peak
