"""The process group of a traced script: rank 0 of as many as it asks for, and nobody else is there.

Collectives change no sizes and send nothing. Where values are known they are this rank's: a sum is its own
part, what is gathered are copies of it. Other ranks of the script wait until the trace ends.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from slurm_gpumem.summaries.trace_types import NCCL, NCCL_FIRST_GROUP, NCCL_FURTHER_GROUP
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.fake_cuda.cuda_answers import Nothing
from slurm_gpumem.tracing.script.report_folder import Report, wait_for_the_end

_IN_PLACE = ("all_reduce", "broadcast", "reduce", "barrier", "monitored_barrier", "broadcast_object_list")
_BY_BACKEND = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter", "reduce_scatter_tensor",
               "reduce_scatter_single", "all_to_all", "all_to_all_single", "scatter", "all_reduce_coalesced",
               "all_gather_coalesced", "send", "recv", "isend", "irecv")  # fmt: skip
"""What PyTorch's fake backend takes."""


def install(recorder: Recorder, report: Report) -> bool:
    """Replace it, for the rest of the process's life; False where this PyTorch has no groups."""
    try:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        return False
    if not dist.is_available():
        return False
    real = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if _number(args, kwargs, 4, "rank") > 0:
            wait_for_the_end()  # a rank that is not traced: it would wait for the others, too
        asked = _number(args, kwargs, 3, "world_size")
        ranks = asked if asked > 0 else max(1, int(os.environ.get("WORLD_SIZE") or 1))
        report.asked_ranks(ranks)
        if not dist.is_initialized():
            real("fake", rank=0, world_size=ranks, store=FakeStore())
        Nccl.backend = str(args[0] if args else kwargs.get("backend") or "nccl")
        if kwargs.get("device_id") is not None:
            Nccl.at_work()

    Nccl.recorder = recorder
    dist.init_process_group = init_process_group
    with_values = {
        **dict.fromkeys(_IN_PLACE, lambda *args, **kwargs: None),
        "all_gather": _gather_list,
        "gather": lambda tensor, outputs=None, *args, **kwargs: _gather_list(outputs, tensor),
        "all_gather_object": _fill,
        "gather_object": lambda found, outputs=None, *args, **kwargs: _fill(outputs, found),
        "scatter_object_list": lambda outputs, inputs, *args, **kwargs: _fill(outputs, inputs[0]),
    }
    for name in (*with_values, *_BY_BACKEND):
        if hasattr(dist, name):
            setattr(dist, name, _counted(with_values.get(name) or getattr(dist, name)))
    return True


def _counted(collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        Nccl.at_work(next((a for a in (*args, kwargs.get("group")) if _is_group(a)), None))
        found = collective(*args, **kwargs)
        return Nothing() if kwargs.get("async_op") and found is None else found

    return call


def _gather_list(outputs: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    """Into a list: NCCL fills one buffer, from which each tensor is copied."""
    outputs = outputs or []
    buffer = tensor.new_empty(sum(output.numel() for output in outputs)) if outputs else None
    for output in outputs:
        if output.shape == tensor.shape:
            output.copy_(tensor.detach())
    del buffer


def _fill(outputs: Any, found: Any, *args: Any, **kwargs: Any) -> None:
    for place in range(len(outputs or ())):
        outputs[place] = found


def _number(args: Any, kwargs: Any, place: int, name: str) -> int:
    return int(args[place] if len(args) > place else kwargs.get(name, -1))


def _is_group(value: Any) -> bool:
    import torch.distributed as dist

    return isinstance(value, dist.ProcessGroup) and value is not dist.group.WORLD


class Nccl:
    """The library's memory."""

    recorder: Optional[Recorder] = None
    backend = ""

    @staticmethod
    def at_work(group: Any = None) -> None:
        """A group communicates: the first time, NCCL allocates its buffers."""
        recorder = Nccl.recorder
        if "nccl" not in Nccl.backend or recorder is None:
            return
        recorder.once(NCCL, NCCL_FIRST_GROUP, NCCL)
        if group is not None:
            recorder.once(f"{NCCL} {id(group)}", NCCL_FURTHER_GROUP, NCCL)
