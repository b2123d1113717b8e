"""Training on several GPUs: wrappers around a model for data parallel training are the model itself."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import _functions
from torch.utils import _pytree as pytree

from slurm_gpumem.summaries.trace_types import BUCKET, BUCKET_CAP, ddp_buckets
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.fake_cuda import process_group, ranks
from slurm_gpumem.tracing.fake_cuda.cuda_answers import Nothing
from slurm_gpumem.tracing.fake_cuda.process_group import Nccl
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.training_names import sharded

_REBUILT_IN = 2
"""The pass that makes DDP's one first bucket into several."""


def install(recorder: Recorder, report: Report) -> None:
    """Replace them, for the rest of the process's life."""
    _end_where_sharded(report)
    ranks.install(report)
    _install_copies()
    if not process_group.install(recorder, report):
        return
    from torch.nn import parallel

    parallel.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc,assignment]
    parallel.DataParallel = DataParallel  # type: ignore[misc,assignment]
    nn.DataParallel = DataParallel  # type: ignore[misc,assignment]
    # The package has a function of the module's name, so the module itself is only found there.
    sys.modules["torch.nn.parallel.data_parallel"].DataParallel = DataParallel  # type: ignore[attr-defined]
    import torch.nn.parallel.distributed as module

    module.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc,assignment]

    DistributedDataParallel.recorder = recorder
    DistributedDataParallel.report = DataParallel.report = report


class DistributedDataParallel(nn.Module):
    """The model itself; its buckets are one more copy of the gradients."""

    recorder: Recorder
    report: Report

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module
        self.reducer = Nothing()
        self.device_ids = kwargs.get("device_ids")
        self.static_graph = bool(kwargs.get("static_graph"))
        self.find_unused_parameters = bool(kwargs.get("find_unused_parameters"))
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        Nccl.at_work()  # it compares its parameters with the other processes'
        self._buckets: List[torch.Tensor] = []
        self._passes = 0
        cap_mb = kwargs.get("bucket_cap_mb")
        self._cap = int(cap_mb * (1 << 20)) if cap_mb else BUCKET_CAP
        trained = [p for p in module.parameters() if p.requires_grad]
        self._sizes = [p.numel() * p.element_size() for p in trained]
        if kwargs.get("gradient_as_bucket_view"):
            self._sizes = []  # gradients are their parts
        if self._sizes:
            self._take([sum(self._sizes)])

    def _take(self, sizes: List[int]) -> None:
        """Buckets of these sizes, in the place of those before."""
        self._buckets = []
        self._buckets = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
        for bucket in self._buckets:
            block = self.recorder.block_of(bucket)
            if block is not None:
                block.operator, block.category = BUCKET, "gradients"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's; the second one of a training makes the buckets again, of their final sizes."""
        if torch.is_grad_enabled():
            self._passes += 1
            if self._passes == _REBUILT_IN and self._sizes:
                self._take(ddp_buckets(self._sizes, self._cap))
        if self.device_ids:
            args, kwargs = pytree.tree_map(_moved, (args, kwargs))
        return self.module(*args, **kwargs)

    def no_sync(self) -> Any:
        """There is nobody to wait for."""
        return nullcontext()

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """Nor anybody who waits."""
        return nullcontext()

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """What it makes of the buckets is not seen."""
        self.report.note(f"DDP's hook {getattr(hook, '__name__', 'of its own')} may need buffers of its own")

    def _get_ddp_logging_data(self) -> Dict[str, Any]:
        """Lightning asks for it."""
        return {}

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("'DistributedDataParallel' object is not iterable")


def _moved(value: Any) -> Any:
    """A tensor on the GPU."""
    return value.cuda() if isinstance(value, torch.Tensor) and not value.is_cuda else value


class _Gathered(torch.autograd.Function):
    """The outputs of all GPUs on the first: as large as the whole batch's."""

    @staticmethod
    def forward(ctx: Any, part: Any, rows: int) -> Any:
        """Of the first GPU's part."""
        ctx.part = part.shape[0]
        return part.new_empty((rows, *part.shape[1:]))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The first GPU's part of the gradient."""
        return gradient[: ctx.part], None


class DataParallel(nn.Module):
    """The first GPU of several, which holds most: its part of the batch, and the outputs of all."""

    report: Report

    def __init__(self, module: nn.Module, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module
        self._gpus = len(device_ids) if device_ids else torch.cuda.device_count()
        self.device_ids = list(device_ids or range(self._gpus))
        if self._gpus == 1:
            module.to("cuda")
        if self._gpus > 1:
            self.report.used_gpus(self._gpus)
            self.report.note(
                f"DataParallel on {self._gpus} GPUs: the first one holds most, and is traced; "
                "the gradients that the others send it are not counted"
            )

    def replicate(self, module: nn.Module, device_ids: Any) -> List[nn.Module]:
        """What scripts wrap that synchronize norms; only the first GPU's model is traced."""
        return [module for _ in device_ids]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's, of a part of the batch, which may come from the CPU."""
        rows = next((len(value) for value in args if isinstance(value, torch.Tensor) and value.dim()), 0)
        rows = rows or next((len(v) for v in kwargs.values() if isinstance(v, torch.Tensor) and v.dim()), 0)
        part = -(-rows // max(1, self._gpus))

        def scattered(value: Any) -> Any:
            whole = isinstance(value, torch.Tensor) and value.dim() and len(value) == rows
            return _moved(value[:part] if whole else value)

        def gathered(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if not value.dim():
                return _Gathered.apply(value.reshape(1), self._gpus)
            return _Gathered.apply(value, rows) if len(value) == part else value

        if self._gpus < 2 or not rows:
            args, kwargs = pytree.tree_map(_moved, (args, kwargs))
            return self.module(*args, **kwargs)
        found = self.module(*pytree.tree_map(scattered, args), **pytree.tree_map(scattered, kwargs))
        return pytree.tree_map(gathered, found)


# Copies between GPUs by `torch.nn.parallel` and `torch.cuda.comm`, where the only GPU is the one that is
# traced: `replicate`, `scatter` and `gather` of scripts that wrap no model in DataParallel. PyTorch's own
# (torch/csrc/cuda/comm.cpp) want tensors on a GPU, and are not in builds without CUDA.


def _install_copies() -> None:
    """Replace what is in PyTorch's core, for the rest of the process's life."""
    for name, ours in _OURS.items():
        setattr(torch._C, name, _for_one(name, ours, getattr(torch._C, name, None)))
    real: Any = _functions.Scatter.forward
    _functions.Scatter.forward = staticmethod(_scattering(real))  # type: ignore[method-assign]


def _for_one(name: str, ours: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Ours for one GPU; of several, only one is traced."""

    def on_one(tensors: Any, devices: Any, *args: Any) -> Any:
        if len(devices) == 1:
            return ours(tensors, *args)
        if real is None:
            raise RuntimeError(f"torch._C.{name}: a trace has one GPU, and {len(devices)} are named")
        return real(tensors, devices, *args)

    return ours if ours is _gather else on_one


def _broadcast(tensor: Tensor) -> List[Tensor]:
    return [tensor.cuda()]


def _broadcast_coalesced(tensors: Sequence[Tensor], buffer_size: int) -> List[List[Tensor]]:
    """The tensors themselves; they are still put together into buffers, as if others were to get them."""
    for group in _groups(tensors, buffer_size):
        flat = [one.contiguous().view(-1) for one in group]
        if len(flat) > 1:
            torch.cat(flat)
    return [list(tensors)]


def _groups(tensors: Sequence[Tensor], size: int) -> Iterator[List[Tensor]]:
    """Tensors of one type that are sent together: a group ends with the one that makes it large enough."""
    waiting: Dict[torch.dtype, List[Tensor]] = {}
    for one in tensors:
        group = waiting.setdefault(one.dtype, [])
        group.append(one)
        if sum(each.numel() * each.element_size() for each in group) >= size:
            yield waiting.pop(one.dtype)
    yield from waiting.values()


def _scattering(real: Callable[..., Any]) -> Callable[..., Any]:
    """What comes from the CPU is copied on a stream of its own; PyTorch's asks for that of a real GPU."""
    streams: List[Any] = []

    def forward(ctx: Any, target_gpus: Any, chunk_sizes: Any, dim: int, data: Tensor) -> Any:
        if len(target_gpus) != 1 or data.device.type != "cpu":
            return real(ctx, target_gpus, chunk_sizes, dim, data)
        ctx.dim, ctx.input_device = dim, -1
        if not streams:
            streams.append(torch.cuda.Stream())
        with torch.cuda.stream(streams[0]):
            return _scatter(data, chunk_sizes, dim, None)

    return forward


def _scatter(tensor: Tensor, chunk_sizes: Any, dim: int, streams: Any) -> Tuple[Tensor, ...]:
    """A view of all of it, or its copy from the CPU."""
    return (tensor.chunk(1, dim)[0].to("cuda", non_blocking=True),)


def _gather(tensors: Sequence[Tensor], dim: int, destination: Any) -> Tensor:
    """A copy, of a single tensor too."""
    return torch.cat([one.cpu() for one in tensors] if destination == -1 else list(tensors), dim)


_OURS: Dict[str, Callable[..., Any]] = {
    "_broadcast": _broadcast,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_scatter": _scatter,
    "_gather": _gather,
}


# Where a script shards or offloads its model the trace ends: one process does not show its peak.


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


def _end_where_sharded(report: Report) -> None:
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
