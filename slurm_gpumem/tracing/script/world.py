"""A node with a GPU, or as many as the job has: "cuda" is there, and every one is the traced device.

Unlike in a child that only builds a model, the whole script runs here, libraries included. So everybody is
told that there is a GPU, tensors on the meta device say that they are on "cuda:0", and what asks a GPU for
facts is answered for the GPU type that the trace is for.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections import defaultdict
from typing import Any, Callable, Dict, Iterator, Protocol, Tuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from slurm_gpumem.tracing.script.generators import Generator, without
from slurm_gpumem.tracing.script.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.launchers import Gpus
from slurm_gpumem.tracing.values import give, small

META = torch.device("meta")
CUDA = torch.device("cuda", 0)


class CudaWorld(TorchFunctionMode):
    """Sends what is asked onto "cuda" to the meta device; meta tensors say that they are on "cuda"."""

    def __init__(self) -> None:
        super().__init__()
        self.default_is_cuda = False
        self.elsewhere: Callable[[Callable[[], Any]], Any] = lambda make: make()
        """Makes tensors that the script itself asks onto "meta": they take no memory anywhere."""
        self._special = _special_functions()
        self._constructors = set(_device_constructors())

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        to_meta = func is torch.Tensor.to and is_meta(args[1] if len(args) > 1 else kwargs.get("device"))
        if special is not None and not to_meta:
            return special(func, args, kwargs)
        # Layers pass device=None on, which means the default.
        device = kwargs.get("device")
        if device is not None:
            if is_cuda(device) or _is_number(device):
                kwargs = {**kwargs, "device": META}
        elif self.default_is_cuda and func in self._constructors:
            kwargs = {**kwargs, "device": META}
        if "pin_memory" in kwargs:
            kwargs = {**kwargs, "pin_memory": False}
        if "generator" in kwargs:
            kwargs = without(kwargs)
        if any(is_cuda(arg) for arg in args):
            args = tuple(META if is_cuda(arg) else arg for arg in args)
        elif to_meta or is_meta(device):
            return self.elsewhere(lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def is_cuda(device: Any) -> bool:
    """Whether a value names a CUDA device."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


def is_meta(device: Any) -> bool:
    """Whether a value names the device without memory."""
    return device.type == "meta" if isinstance(device, torch.device) else bool(device == "meta")


def _is_number(device: Any) -> bool:
    """Whether a device is named by the number of a GPU."""
    return isinstance(device, int) and not isinstance(device, bool)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with no torch function mode at work: inside, meta tensors say that they are on "meta"."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return inner


# -- Tensors -------------------------------------------------------------------------------------


def _special_functions() -> Dict[Any, Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]]:
    tensor: Any = torch.Tensor
    return {
        tensor.device.__get__: _device,
        tensor.is_cuda.__get__: lambda func, args, kwargs: _on_meta(args[0]),
        tensor.is_meta.__get__: lambda func, args, kwargs: False,
        tensor.get_device: lambda func, args, kwargs: 0 if _on_meta(args[0]) else -1,
        tensor.cuda: _cuda,
        tensor.to: _to,
        tensor.pin_memory: lambda func, args, kwargs: args[0],
        tensor.is_pinned: lambda func, args, kwargs: False,
        tensor.data.__set__: _set_data,
        tensor.tolist: _tolist,
        **dict.fromkeys((tensor.__getitem__, tensor.__setitem__), _item),
        **dict.fromkeys((tensor.__float__, tensor.__int__, tensor.__index__, tensor.__bool__), _read),
        tensor.item: _read,
        tensor.__format__: _format,
        tensor.type: _type,
        torch.device: _named,
        # Parameters of other types ask it where they go, and are told what the script said.
        torch._C._nn._parse_to: lambda func, args, kwargs: func(*args, **kwargs),
        **dict.fromkeys((torch.isnan, tensor.isnan, torch.isinf, tensor.isinf), _fine(False)),
        **dict.fromkeys((torch.isfinite, tensor.isfinite), _fine(True)),
    }


@plain
def _on_meta(tensor: Any) -> bool:
    return bool(tensor.device.type == "meta")


def _named(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """`torch.device(0)` is a GPU where there is one."""
    if args and _is_number(args[0]):
        return func("cuda", args[0])
    return func(*args, **kwargs)


def _item(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Numbers of a tensor of the CPU: scripts make batches of them one by one, so that nobody looks on."""
    if _is_of_cpu(args[0]) and all(_is_plain(arg) for arg in args[1:]):
        with torch._C._DisableTorchDispatch():
            return func(*args)
    return func(*args, **kwargs)


def _is_of_cpu(tensor: Any) -> bool:
    """Whether nothing of a tensor came from the GPU."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not vars(tensor)


def _is_plain(index: Any) -> bool:
    """Whether it is made of numbers, and of tensors of the CPU."""
    if isinstance(index, slice):
        return _is_plain(index.start) and _is_plain(index.stop) and _is_plain(index.step)
    if isinstance(index, (tuple, list)):
        return all(_is_plain(one) for one in index)
    if isinstance(index, torch.Tensor):
        return _is_of_cpu(index)
    return index is None or isinstance(index, (int, float))


def _device(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    found = func(*args, **kwargs)
    return CUDA if found.type == "meta" else found


def _cuda(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    options = {name: kwargs[name] for name in ("memory_format",) if name in kwargs}
    return args[0].to(META, **options)


def _to(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    if len(args) > 1 and (is_cuda(args[1]) or _is_number(args[1])):
        args = (args[0], META, *args[2:])
    elif is_cuda(kwargs.get("device")) or _is_number(kwargs.get("device")):
        kwargs = {**kwargs, "device": META}
    return func(*args, **kwargs)


def _set_data(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """`parameter.data = parameter.data.cuda()`: between CPU and CUDA that is allowed, to meta it is not."""
    target, value = args
    if _on_meta(target) == _on_meta(value):
        return func(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        twin = torch.Tensor._make_subclass(type(target), value, target.requires_grad)
        twin.__dict__.update(target.__dict__)
        torch.utils.swap_tensors(target, twin)


def _tolist(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    return func(args[0].to("cpu") if _on_meta(args[0]) else args[0])


def _read(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """A number: `torch.Tensor([loss])` reads it with all modes off, who answers for it among them."""
    if _is_of_cpu(args[0]):
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    keys = torch._C.DispatchKey
    if not torch._C._dispatch_tls_is_dispatch_key_excluded(keys.Python):
        return func(*args, **kwargs)
    off = torch._C._dispatch_tls_local_exclude_set().remove(keys.Python).remove(keys.PythonTLSSnapshot)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), off):
        return func(*args, **kwargs)


def _format(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    tensor, spec = args
    if _on_meta(tensor) and (spec or tensor.dim() == 0):
        tensor = tensor.detach().to("cpu")
        return format(tensor.item() if tensor.dim() == 0 else str(tensor), spec if tensor.dim() == 0 else "")
    return func(*args, **kwargs)


def _fine(value: bool) -> Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]:
    """`isnan`, `isinf`, `isfinite`: training goes well."""

    def answer(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        found = func(*args, **kwargs)
        if _on_meta(found) and small(found):
            give(found, torch.full(found.shape, value))
        return found

    return answer


def _type(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    named = args[1] if len(args) > 1 else kwargs.get("dtype")
    if isinstance(named, str) and named.startswith("torch.cuda."):
        named = LEGACY.get(named.rsplit(".", 1)[1], named)
    if isinstance(named, LegacyType):
        return args[0].to(device=META, dtype=named.dtype)
    if named is None and _on_meta(args[0]):
        return next(
            (f"torch.cuda.{name}" for name, kind in LEGACY.items() if kind.dtype == args[0].dtype), ""
        )
    return func(*args, **kwargs)


class LegacyType:
    """`torch.cuda.FloatTensor` and its kin: makes tensors on "cuda", from sizes or numbers or nothing."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.__name__, self.dtype = name, dtype

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and _on_meta(value) and value.dtype == self.dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            given = args[0]
            if isinstance(given, torch.Tensor):
                return given.to(device=CUDA, dtype=self.dtype)
            return torch.tensor(given, dtype=self.dtype).to(CUDA)
        return torch.empty(*(args or (0,)), dtype=self.dtype, device=CUDA)


LEGACY = {
    f"{name}Tensor": LegacyType(f"{name}Tensor", dtype)
    for name, dtype in (
        ("Float", torch.float32),
        ("Double", torch.float64),
        ("Half", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Long", torch.int64),
        ("Int", torch.int32),
        ("Short", torch.int16),
        ("Byte", torch.uint8),
        ("Char", torch.int8),
        ("Bool", torch.bool),
    )
}


# -- torch.cuda and torch.accelerator -------------------------------------------------------------


class Memory(Protocol):
    """Who knows how much is allocated."""

    live_bytes: int
    most_bytes: int
    """At once, since the script last asked to forget it."""

    def empty_cache(self) -> None:
        """What is free goes back to the driver."""


def _statistics(memory: Memory) -> Callable[..., Dict[str, int]]:
    """`torch.cuda.memory_stats()`: what is allocated counts as what is reserved; nothing else happens."""

    def memory_stats(*args: Any, **kwargs: Any) -> Dict[str, int]:
        found: Dict[str, int] = defaultdict(int)
        for kind in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"):
            found[f"{kind}.all.current"] = memory.live_bytes
            found[f"{kind}.all.peak"] = memory.most_bytes
        return found

    return memory_stats


def _forgetting(memory: Memory) -> Callable[..., None]:
    def reset(*args: Any, **kwargs: Any) -> None:
        memory.most_bytes = memory.live_bytes

    return reset


def _of_memory(memory: Memory) -> Dict[str, Callable[..., Any]]:
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


def answers(world: CudaWorld, gpu: GpuFacts, memory: Memory) -> Iterator[Tuple[Any, str, Any]]:
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
    yield torch, "set_default_device", _default_device(world)
    yield torch, "set_default_tensor_type", _default_tensor_type(world)
    yield torch, "get_default_device", lambda: CUDA if world.default_is_cuda else torch.device("cpu")
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


def install_answers(world: CudaWorld, gpu: GpuFacts, memory: Memory) -> None:
    """Put them in place, for the rest of the process's life."""
    for owner, name, value in answers(world, gpu, memory):
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
        if args and _is_number(args[0]):
            args = (CUDA, *args[1:])
        if _is_number(kwargs.get("device")):
            kwargs = {**kwargs, "device": CUDA}
        return real(module, *args, **kwargs)

    return to


def _default_device(world: CudaWorld) -> Callable[[Any], None]:
    def set_default_device(device: Any) -> None:
        world.default_is_cuda = is_cuda(device)

    return set_default_device


def _default_tensor_type(world: CudaWorld) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            kind = LEGACY.get(kind.rsplit(".", 1)[1], kind)
        world.default_is_cuda = isinstance(kind, LegacyType)
        _legacy_constructor(world)
        torch.set_default_dtype(kind.dtype if hasattr(kind, "dtype") else _dtype_named(kind))

    return set_default_tensor_type


def _legacy_constructor(world: CudaWorld) -> None:
    """`torch.Tensor([1.0])` asks no function that could be replaced; it follows the default type only."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = torch._C.TensorBase.__new__(cls, *args, **kwargs)
        here = world.default_is_cuda and cls is torch.Tensor and made.device.type == "cpu"
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
