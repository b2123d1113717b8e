"""What `torch.cuda` and `torch.accelerator` answer: there is a GPU, of the type that the trace is for."""

from __future__ import annotations

import importlib
import sys
import types
from collections import defaultdict
from itertools import count
from typing import Any, Callable, Dict, Iterator, Tuple

import torch

from slurm_gpumem.tracing.fake_cuda.device import (
    CUDA,
    LEGACY,
    FakeCuda,
    Generator,
    LegacyType,
    is_cuda,
    is_number,
)
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.fake_cuda.ranks import Gpus
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder


def _statistics(memory: ScriptRecorder) -> Callable[..., Dict[str, int]]:
    """`torch.cuda.memory_stats()`: what is allocated counts as what is reserved; nothing else happens."""

    def memory_stats(*args: Any, **kwargs: Any) -> Dict[str, int]:
        found: Dict[str, int] = defaultdict(int)
        for kind in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"):
            found[f"{kind}.all.current"] = memory.live_bytes
            found[f"{kind}.all.peak"] = memory.most_bytes
        return found

    return memory_stats


def _forgetting(memory: ScriptRecorder) -> Callable[..., None]:
    def reset(*args: Any, **kwargs: Any) -> None:
        memory.most_bytes = memory.live_bytes

    return reset


def _of_memory(memory: ScriptRecorder) -> Dict[str, Callable[..., Any]]:
    """What asks for allocated memory or changes it, by its names in torch.cuda and torch.accelerator."""
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"),
                        lambda *args, **kwargs: memory.live_bytes),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"),
                        lambda *args, **kwargs: memory.most_bytes),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
                        _forgetting(memory)),
        "memory_stats": _statistics(memory),
        "empty_cache": lambda *args, **kwargs: memory.empty_cache(),
    }  # fmt: skip


def answers(fake: FakeCuda, gpu: GpuFacts, memory: ScriptRecorder) -> Iterator[Tuple[Any, str, Any]]:
    """(owner, name, replacement) of the functions that ask for a GPU or command one."""
    properties = types.SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.sms,
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        gcnArchName="",
        uuid="",
    )

    def free_and_total(*args: Any, **kwargs: Any) -> Tuple[int, int]:
        return gpu.memory_bytes - memory.live_bytes, gpu.memory_bytes

    values: Dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "current_device": 0,
        "get_device_name": gpu.name,
        "get_device_capability": gpu.capability,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "is_bf16_supported": gpu.capability[0] >= 8,
        "is_current_stream_capturing": False,
        "memory_summary": "",
        "memory_snapshot": [],
        "list_gpu_processes": "",
        "utilization": 0,
        "temperature": 0,
        "power_draw": 0,
        **dict.fromkeys(
            (
                "set_device", "synchronize", "ipc_collect", "reset_accumulated_memory_stats",
                "set_per_process_memory_fraction", "init", "_lazy_init", "set_stream",
            )
        ),
    }  # fmt: skip
    Gpus.given = gpu.gpus
    yield torch.cuda, "device_count", Gpus.count
    for name, value in values.items():
        yield torch.cuda, name, _answering(value)
    for name, answer in _of_memory(memory).items():
        yield torch.cuda, name, answer
    yield torch.cuda, "mem_get_info", free_and_total
    for owner in (torch.cuda, torch.cuda.random):  # both names are in use
        yield owner, "get_rng_state", lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8)
        yield owner, "get_rng_state_all", _answering([])
        for name in (
            "set_rng_state",
            "set_rng_state_all",
            "manual_seed",
            "manual_seed_all",
            "seed",
            "seed_all",
        ):
            yield owner, name, _answering(None)
    yield torch.UntypedStorage, "data_ptr", _addresses(torch.UntypedStorage.data_ptr)
    for name in ("Stream", "Event", "stream", "device", "device_of", "CUDAGraph", "graph", "ExternalStream"):
        yield torch.cuda, name, Nothing
    for name in ("current_stream", "default_stream"):
        yield torch.cuda, name, _answering(Nothing())
    if torch.version.cuda is None:
        yield torch.version, "cuda", "12.6"
    yield torch.backends.cuda, "is_built", _answering(True)
    for name, kind in LEGACY.items():
        yield torch.cuda, name, kind
    yield torch.Tensor, "record_stream", _answering(None)
    yield torch, "Generator", Generator
    yield torch.nn.Module, "to", _module_to(torch.nn.Module.to)
    yield torch, "set_default_device", _default_device(fake)
    yield torch, "set_default_tensor_type", _default_tensor_type(fake)
    yield torch, "get_default_device", lambda: CUDA if fake.default_is_cuda else torch.device("cpu")
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        facts = {
            "is_available": True,
            "current_accelerator": torch.device("cuda"),
            "current_device_index": 0,
            "current_device_idx": 0,
            **dict.fromkeys(("set_device_index", "set_device_idx", "synchronize", "set_stream")),
        }
        yield accelerator, "device_count", Gpus.count
        for name, value in facts.items():
            yield accelerator, name, _answering(value)
        for name, answer in _of_memory(memory).items():
            yield accelerator, name, answer
        yield accelerator, "current_stream", _answering(Nothing())
        yield accelerator, "device_index", Nothing
    nvtx = sys.modules.get("torch.cuda.nvtx")
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if nvtx is not None:
            yield nvtx, name, _answering(None)


def _addresses(real: Callable[[Any], int]) -> Callable[[Any], int]:
    """Storages without memory have addresses too: savers find tied weights by them."""

    def data_ptr(storage: Any) -> int:
        return real(storage) or (storage._cdata if storage.nbytes() else 0)

    return data_ptr


def install_answers(fake: FakeCuda, gpu: GpuFacts, memory: ScriptRecorder) -> None:
    """Put them in place, for the rest of the process's life."""
    for owner, name, value in answers(fake, gpu, memory):
        if hasattr(owner, name):
            setattr(owner, name, value)
        if owner is torch.cuda and hasattr(torch.cuda.memory, name):  # its other name
            setattr(torch.cuda.memory, name, value)
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # builds without CUDA; libraries take it at import
        torch._C._cuda_getCurrentRawStream = _answering(0)


def _answering(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


def _module_to(real: Callable[..., Any]) -> Callable[..., Any]:
    """`module.to(0)`: torch looks for that GPU, before any tensor is asked."""

    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        if args and is_number(args[0]):
            args = (CUDA, *args[1:])
        if is_number(kwargs.get("device")):
            kwargs = {**kwargs, "device": CUDA}
        return real(module, *args, **kwargs)

    return to


def _default_device(fake: FakeCuda) -> Callable[[Any], None]:
    def set_default_device(device: Any) -> None:
        fake.default_is_cuda = is_cuda(device)

    return set_default_device


def _default_tensor_type(fake: FakeCuda) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            kind = LEGACY.get(kind.rsplit(".", 1)[1], kind)
        fake.default_is_cuda = isinstance(kind, LegacyType)
        _legacy_constructor(fake)
        torch.set_default_dtype(kind.dtype if hasattr(kind, "dtype") else _dtype_named(kind))

    return set_default_tensor_type


def _legacy_constructor(fake: FakeCuda) -> None:
    """`torch.Tensor([1.0])` asks no function that could be replaced; it follows the default type only."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = torch._C.TensorBase.__new__(cls, *args, **kwargs)
        here = fake.default_is_cuda and cls is torch.Tensor and made.device.type == "cpu"
        return made.to(CUDA) if here else made

    # The compiler compares the constructor's signature with its own when it is loaded.
    importlib.import_module("torch._dynamo")
    torch.Tensor.__new__ = staticmethod(__new__)  # type: ignore[method-assign]


def _dtype_named(kind: Any) -> torch.dtype:
    """Of `torch.FloatTensor` or its name."""
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    found = LEGACY.get(name.rsplit(".", 1)[-1])
    if found is None:
        raise TypeError(f"invalid type object: {name}")
    return found.dtype


class Nothing:
    """A stream, an event, a device context, a graph: there, and without effect."""

    cuda_stream = 0
    device = CUDA

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function

    def elapsed_time(self, *args: Any) -> float:
        """Milliseconds between two events: something that can be divided by."""
        return 1.0

    def query(self) -> bool:
        """Whether the work before it is done."""
        return True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _answering(None)


# -- Streams and CUDA graphs: nothing runs on them here, and they take memory of their own -------------

FURTHER_STREAM = 70 << 20
"""What the driver takes, outside of PyTorch's allocator, when work is given to a second stream: 64 to 70 MiB
on an H200, PyTorch 2.11."""
MOST_STREAMS = 32
"""PyTorch gives a script's streams out of a pool of this size, one after the other."""


def install_streams(recorder: ScriptRecorder, report: Report) -> None:
    """Replace them, for the rest of the process's life."""
    numbers = count()

    class Stream(Nothing):
        """A stream of the script's own."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.number = 1 + next(numbers) % MOST_STREAMS

    class OnStream(Nothing):
        """`with torch.cuda.stream(side)`."""

        def __init__(self, stream: Any = None) -> None:
            self._number = stream.number if isinstance(stream, Stream) else 0

        def __enter__(self) -> OnStream:
            self._outer = (recorder.stream, recorder.pool)
            if self._number:
                recorder.once("stream", FURTHER_STREAM, "stream")
                recorder.stream, recorder.pool = f"{self._number}", self._number
            return self

        def __exit__(self, *args: Any) -> None:
            recorder.stream, recorder.pool = self._outer

    class Captured(Nothing):
        """`with torch.cuda.graph(g)`: its blocks come from a pool of its own, which keeps what they leave."""

        def __enter__(self) -> Captured:
            recorder.once("stream", FURTHER_STREAM, "stream")
            self._outer, recorder.stream = recorder.stream, "capture"
            self._before, self._peak = recorder.live_bytes, recorder.peak_bytes
            recorder.peak_bytes = recorder.live_bytes
            return self

        def __exit__(self, *args: Any) -> None:
            recorder.stream = self._outer
            kept = recorder.live_bytes
            within, recorder.peak_bytes = recorder.peak_bytes, max(recorder.peak_bytes, self._peak)
            if within > kept:
                recorder.take(within - max(kept, self._before), "cuda graph", "activations")

    def graphed(callables: Any, *args: Any, **kwargs: Any) -> Any:
        """The model itself: what it allocates is about what its graphs keep."""
        report.note(
            "make_graphed_callables is traced as the model itself. Its graphs keep their memory also while "
            "it is evaluated, or while other models run: that comes on top"
        )
        return callables

    for name, value in (
        ("Stream", Stream),
        ("stream", OnStream),
        ("graph", Captured),
        ("make_graphed_callables", graphed),
    ):
        setattr(torch.cuda, name, value)
