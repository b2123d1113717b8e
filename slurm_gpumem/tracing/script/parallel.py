"""Training on several GPUs, as one process of one meets it: a group of one, and wrappers around the model."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, NCCL_FIRST_GROUP, NCCL_FURTHER_GROUP
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.streams import FURTHER_STREAM

_FSDP = "FSDP on one GPU is traced as the model itself"
_COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce", "barrier",
                "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather",
                "scatter", "all_gather_object", "broadcast_object_list")  # fmt: skip


def install(tracer: Any) -> None:
    """Replace them, for the rest of the process's life."""
    if not _group_of_one(tracer):
        return
    from torch.nn import parallel

    parallel.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc,assignment]
    parallel.DataParallel = DataParallel  # type: ignore[misc,assignment]
    nn.DataParallel = DataParallel  # type: ignore[misc,assignment]
    import torch.nn.parallel.distributed as module

    module.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc,assignment]

    def whole_parameters(fsdp: Any) -> None:
        FullyShardedDataParallel.note = tracer.note
        for name in ("FullyShardedDataParallel", "fully_shard"):
            if hasattr(fsdp, name):
                setattr(fsdp, name, globals()[name])

    names = ("torch.distributed.fsdp", "torch.distributed.fsdp.fully_sharded_data_parallel",
             "torch.distributed._composable.fsdp")  # fmt: skip
    AfterImport(dict.fromkeys(names, whole_parameters)).install()


def _group_of_one(tracer: Any) -> bool:
    """A process group of one that talks to nobody, and takes what NCCL would."""
    try:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        return False
    if not dist.is_available():
        return False
    real = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        wanted = args[3] if len(args) > 3 else kwargs.get("world_size", -1)
        tracer.asked_ranks(wanted if wanted > 0 else int(os.environ.get("WORLD_SIZE") or 1))
        if not dist.is_initialized():
            real("fake", rank=0, world_size=1, store=FakeStore())
        Nccl.backend = str(args[0] if args else kwargs.get("backend") or "nccl")
        if kwargs.get("device_id") is not None:
            Nccl.at_work()

    def counting(collective: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            Nccl.at_work(next((a for a in (*args, kwargs.get("group")) if _is_group(a)), None))
            return collective(*args, **kwargs)

        return call

    Nccl.recorder = tracer.recorder
    dist.init_process_group = init_process_group
    for name in _COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, counting(getattr(dist, name)))
    return True


def _is_group(value: Any) -> bool:
    import torch.distributed as dist

    return isinstance(value, dist.ProcessGroup) and value is not dist.group.WORLD


class Nccl:
    """The library's memory."""

    recorder: Any = None
    backend = ""

    @staticmethod
    def at_work(group: Any = None) -> None:
        """A group communicates: the first time, NCCL allocates its buffers."""
        if "nccl" not in Nccl.backend:
            return
        Nccl.recorder.once(NCCL, NCCL_FIRST_GROUP, NCCL)
        if group is not None:
            Nccl.recorder.once(f"{NCCL} {id(group)}", NCCL_FURTHER_GROUP, NCCL)


class DistributedDataParallel(nn.Module):
    """The model itself; its buckets are one more copy of the gradients."""

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module
        Nccl.at_work()  # it compares its parameters with the other processes'
        self._buckets: List[torch.Tensor] = []
        if not kwargs.get("gradient_as_bucket_view"):
            trained = [p for p in module.parameters() if p.requires_grad]
            self._buckets = [torch.empty_like(p, requires_grad=False) for p in trained]
            for bucket in self._buckets:
                block = Nccl.recorder.block_of(bucket)
                if block is not None:
                    block.operator, block.category = BUCKET, "gradients"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> Any:
        """There is nobody to wait for."""
        return nullcontext()

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("'DistributedDataParallel' object is not iterable")


class DataParallel(nn.Module):
    """On one GPU it is the model itself."""

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        return self.module(*args, **kwargs)


class FullyShardedDataParallel(nn.Module):
    """The model itself: one GPU has all of it. Mixed precision casts the parameters for a pass."""

    note: Any = staticmethod(lambda text: None)

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        FullyShardedDataParallel.note(_FSDP)
        Nccl.at_work()
        if kwargs.get("device_id") is not None:
            module = module.cuda()
        self.module = module
        self._half = getattr(kwargs.get("mixed_precision"), "param_dtype", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        if self._half is None:
            return self.module(*args, **kwargs)
        return _in_half(self.module, self.module, self._half, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def no_sync(self) -> Any:
        """There is nobody to wait for."""
        return nullcontext()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """Of all gradients together."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    @staticmethod
    def state_dict_type(*args: Any, **kwargs: Any) -> Any:
        """Every kind is the model's own."""
        return nullcontext()

    set_state_dict_type = summon_full_params = state_dict_type

    @staticmethod
    def optim_state_dict(model: Any, optim: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """The optimizer's own."""
        found: Dict[str, Any] = optim.state_dict()
        return found


def fully_shard(module: Any, **kwargs: Any) -> Any:
    """FSDP2's way: the model itself, its parameters cast for a pass where it says so."""
    FullyShardedDataParallel.note(_FSDP)
    Nccl.recorder.once("stream", FURTHER_STREAM, "stream")  # it gathers on one, of one process too
    half = getattr(kwargs.get("mp_policy"), "param_dtype", None)
    if half is not None and not isinstance(module, (list, tuple)):
        forward = module.forward

        def in_half(*args: Any, **options: Any) -> Any:
            if any(p.dtype == half for p in module.parameters()):
                return forward(*args, **options)  # cast already, by a model around it
            return _in_half(module, forward, half, args, options)

        module.forward = in_half
    return module


def _in_half(module: nn.Module, call: Any, half: torch.dtype, args: Tuple[Any, ...], kwargs: Any) -> Any:
    """A pass with parameters and inputs of another type; gradients come back in the parameters' own."""

    def cast(value: Any) -> Any:
        return value.to(half) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    parameters = {name: cast(value) for name, value in module.named_parameters()}
    args, kwargs = pytree.tree_map(cast, (args, kwargs))
    if call is module:
        return functional_call(module, parameters, args, kwargs)
    with nn.utils.stateless._reparametrize_module(module, parameters):
        return call(*args, **kwargs)
