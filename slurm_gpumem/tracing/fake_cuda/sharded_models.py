"""Where a script shards or offloads its model the trace ends: one process does not show its peak."""

from __future__ import annotations

from functools import partial
from typing import Any, Tuple

from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.training_names import sharded

_FSDP = sharded("FSDP")
_FSDP_NAMES = ("FullyShardedDataParallel", "fully_shard")
_SHARDING = {
    "torch.distributed.fsdp": (_FSDP, _FSDP_NAMES),
    "torch.distributed.fsdp.fully_sharded_data_parallel": (_FSDP, _FSDP_NAMES),
    "torch.distributed._composable.fsdp": (_FSDP, _FSDP_NAMES),
    "torch.distributed.tensor.parallel": (sharded("tensor parallelism"), ("parallelize_module",)),
    "torch.distributed.tensor.parallel.api": (sharded("tensor parallelism"), ("parallelize_module",)),
    "torch.distributed.pipelining": (sharded("a pipeline"), ("pipeline", "PipelineStage")),
    "torch.distributed.optim": (sharded("ZeroRedundancyOptimizer"), ("ZeroRedundancyOptimizer",)),
    "deepspeed": (sharded("DeepSpeed"), ("initialize", "PipelineModule")),
    "deepspeed.runtime.zero.partition_parameters": (sharded("DeepSpeed"), ("Init",)),
}
"""By module: what its functions and classes do to a model."""
_OFFLOADED = "it keeps part of its model on the CPU (accelerate)"


def install(report: Report) -> None:
    """Wait for the modules."""
    actions = {name: partial(_end_at, report, *what) for name, what in _SHARDING.items()}
    AfterImport({**actions, "accelerate.hooks": partial(_end_at_offload, report)}).install()


def _end_at(report: Report, why: str, names: Tuple[str, ...], module: Any) -> None:
    def end(*args: Any, **kwargs: Any) -> None:
        report.not_estimated(why)

    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, type):
            # The class itself stays: libraries ask whether a model is one.
            found.__init__ = end  # type: ignore[misc]
        elif found is not None:
            setattr(module, name, end)


def _end_at_offload(report: Report, module: Any) -> None:
    kind = getattr(module, "AlignDevicesHook", None)
    if kind is None:
        return
    real = kind.init_hook

    def init_hook(hook: Any, *args: Any, **kwargs: Any) -> Any:
        if hook.offload:
            report.not_estimated(_OFFLOADED)
        return real(hook, *args, **kwargs)

    kind.init_hook = init_hook
