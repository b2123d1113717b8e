"""xMem (Shi et al., 2025) on one measured job: its own code, from a checkout that the caller names.

xMem reads a profile of a training on the CPU and replays it through a simulated allocator. The profile is
made as its own profiler makes it, by the order of its own training loop.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping

from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from lab.networks.tasks import Batch
from lab.others.training import CPU, Training, built, training_of
from slurm_gpumem.errors import UsageError

GPU_GB = 140
STEPS = 3
"""One while the profiler warms up, and the two that xMem reads."""


def xmem(row: Mapping[str, Any], checkout: Path) -> Dict[str, Any]:
    """Profile a training, and ask the checkout's estimator for what its allocator reserves."""
    # It takes every block of a weight's size in the optimizer's step for a state, so no lists of temporaries.
    training = training_of(row, built(row), foreach=False)
    loss = _Loss(training)
    steps = schedule(wait=1, warmup=1, active=2, repeat=1)
    with tempfile.TemporaryDirectory(prefix="gpumem-xmem-") as folder:
        path = Path(folder, "profile.json")
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=steps,
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            with_modules=True,
        ) as profiler:
            for _ in range(STEPS):
                batch = training.make()
                profiler.step()
                training.optimizer.zero_grad()
                batch = _moved(batch)
                loss(training.model(*batch.args, **batch.kwargs), batch.target).backward()
                training.optimizer.step()
        if str(checkout) not in sys.path:
            sys.path.insert(0, str(checkout))
        estimators = importlib.import_module("perf_estimator.estimator")
        of_row = _of_model(estimators, training.model) if row["source"] == "transformers" else None
        estimator = (of_row or estimators.Estimator)(profiler_file=str(path), max_gpu_memory_in_gb=GPU_GB)
        _, result = estimator.estimate(target_iteration=2)
    if result["OOM"]:
        raise UsageError(f"xMem gave no peak: its allocator stopped at {result['memory']}")
    return {"reserved_bytes": int(result["memory"]["segment"])}


class _Loss(nn.Module):
    """A loss as a module with that name, which is how xMem finds it."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.of = training.loss_of

    def forward(self, out: Any, target: Any) -> Tensor:
        return self.of(out, target)


def _moved(batch: Batch) -> Batch:
    """As its loops move a batch: xMem finds the data by these calls."""

    def to(value: Any) -> Any:
        return value.to(CPU) if isinstance(value, Tensor) else value

    kwargs = {name: to(value) for name, value in batch.kwargs.items()}
    return Batch(tuple(map(to, batch.args)), kwargs, to(batch.target))


def _of_model(estimators: Any, model: nn.Module) -> Any:
    """Its estimator for transformers, which makes the weights' blocks of the model itself, last one first.

    It would ask the hub for the model by its name; this one has it.
    """

    class OfModel(estimators.TrainerEstimator):  # type: ignore[misc]
        def model_memory(self, iteration_index: int, reset: bool = False) -> List[Any]:
            tensors = [*reversed(list(model.parameters())), *reversed(list(model.buffers()))]
            return [self.create_memory_block(tensor.nbytes, at) for at, tensor in enumerate(tensors, 1)]

    return OfModel
