"""Copies between GPUs by `torch.nn.parallel` and `torch.cuda.comm`, where the only GPU is the one that is
traced: `replicate`, `scatter` and `gather` of scripts that wrap no model in DataParallel.

PyTorch's own (torch/csrc/cuda/comm.cpp) want tensors on a GPU, and are not in builds without CUDA.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn.parallel import _functions


def install() -> None:
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
