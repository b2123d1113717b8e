"""Make the user's CUDA calls harmless without a GPU: "cuda" is the device that is traced.

The user's own code sees a GPU (`torch.cuda.is_available()`), because we trace what it would do
there. Libraries see none, so that they do not look for kernels that are missing.
"""

from __future__ import annotations

import sys
import types
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from slurm_gpumem.tracing.own_code import is_users

_GIB = 1 << 30


class CudaHere(TorchFunctionMode):
    """Sends every tensor that is moved to "cuda" to another device instead."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        if func is torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].device == self._device
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs = {**kwargs, "device": self._device}
        if func is torch.Tensor.to and any(_is_cuda(arg) for arg in args[1:]):
            args = (args[0], *(self._device if _is_cuda(arg) else arg for arg in args[1:]))
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    # A bare number is the index of a CUDA device.
    return isinstance(device, str) and device.split(":")[0] == "cuda"


@contextmanager
def cuda_is_here(device: str) -> Iterator[None]:
    """Inside, the user's code may use "cuda" as on a node with one GPU."""
    with ExitStack() as stack:
        for owner, name, value in _replacements():
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(CudaHere(device))
        yield


def _replacements() -> Iterator[Tuple[Any, str, Any]]:
    yield torch.cuda, "is_available", _for_users(True, torch.cuda.is_available)
    yield torch.cuda, "device_count", _for_users(1, torch.cuda.device_count)
    properties = types.SimpleNamespace(
        name="GPU", major=9, minor=0, total_memory=80 * _GIB, multi_processor_count=132
    )
    answers: Dict[str, Any] = {
        "current_device": 0,
        "get_device_name": "GPU",
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "mem_get_info": (80 * _GIB, 80 * _GIB),
        "is_bf16_supported": True,
        "memory_summary": "",
        **dict.fromkeys(
            ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), 0
        ),
        **dict.fromkeys(
            (
                "set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats",
                "reset_max_memory_allocated", "set_per_process_memory_fraction", "init",
            )
        ),
    }  # fmt: skip
    for name, answer in answers.items():
        yield torch.cuda, name, _answering(answer)
    for name in ("Stream", "Event", "stream", "device", "current_stream"):
        yield torch.cuda, name, mock.MagicMock()  # present, but without effect
    yield torch, "set_default_device", _default_device(torch.set_default_device)


def _answering(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


def _for_users(value: Any, real: Callable[[], Any]) -> Callable[[], Any]:
    def answer() -> Any:
        return value if is_users(sys._getframe(1).f_code.co_filename) else real()

    return answer


def _default_device(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_device(device: Any) -> None:
        if not _is_cuda(device):
            real(device)

    return set_default_device
