"""A node with a GPU, or as many as the job has: "cuda" is there, and every one is the traced device.

Unlike in a child that only builds a model, the whole script runs here, libraries included. So everybody is
told that there is a GPU (`cuda_answers`), and tensors on the meta device say that they are on "cuda:0".
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from slurm_gpumem.tracing.engine.value_dependent_code import wanted
from slurm_gpumem.tracing.engine.values import give, small, value_of

# A number that nobody knows: what follows from it by arithmetic is not known either, and passes checks.


class MadeUp(float):
    """A made-up number; `assert error < 1e-5` goes on with it."""

    def __reduce__(self) -> Tuple[Any, ...]:
        return float, (float(self),)  # saved as Python's own


def _arithmetic(name: str) -> Callable[..., Any]:
    real = getattr(float, name)

    def of_both(self: MadeUp, *others: Any) -> Any:
        found = real(self, *others)
        return MadeUp(found) if type(found) is float else found

    return of_both


def _comparison(name: str) -> Callable[..., Any]:
    real = getattr(float, name)

    def compared(self: MadeUp, other: Any) -> Any:
        check = wanted() if isinstance(other, (int, float)) else None
        return real(self, other) if check is None else check

    return compared


_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (*(f"__{way}{one}__" for one in _TWO for way in ("", "r")), "__neg__", "__pos__", "__abs__"):
    setattr(MadeUp, _name, _arithmetic(_name))
for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(MadeUp, _name, _comparison(_name))
MadeUp.__hash__ = float.__hash__  # type: ignore[method-assign]


# `torch.Generator(device="cuda")`: random numbers of a GPU, which have no values here.


_REAL: Any = torch.Generator


class Generator(_REAL):  # type: ignore[misc]
    """One of the CPU, that says where it was asked to be."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = _REAL.__new__(cls)
        made.on_gpu = type(device) is int or str(device).startswith("cuda")
        return made

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """Where it was asked to be."""
        return torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")


def without(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of a function that draws numbers, without a generator of the GPU."""
    generator = kwargs.get("generator")
    if getattr(generator, "on_gpu", False):
        return {name: value for name, value in kwargs.items() if name != "generator"}
    return kwargs


META = torch.device("meta")
CUDA = torch.device("cuda", 0)


class FakeCuda(TorchFunctionMode):
    """Sends what is asked onto "cuda" to the meta device; meta tensors say that they are on "cuda"."""

    def __init__(self, elsewhere: Callable[[Callable[[], Any]], Any] = lambda make: make()) -> None:
        super().__init__()
        self.default_is_cuda = False
        self._elsewhere = elsewhere
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
            if is_cuda(device) or is_number(device):
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
            return self._elsewhere(lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def is_cuda(device: Any) -> bool:
    """Whether a value names a CUDA device."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


def is_meta(device: Any) -> bool:
    """Whether a value names the device without memory."""
    return device.type == "meta" if isinstance(device, torch.device) else bool(device == "meta")


def is_number(device: Any) -> bool:
    """Whether a device is named by the number of a GPU."""
    return isinstance(device, int) and not isinstance(device, bool)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with no torch function mode at work: inside, meta tensors say that they are on "meta"."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return inner


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
        tensor.item: _number,
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
    if args and is_number(args[0]):
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
    if len(args) > 1 and (is_cuda(args[1]) or is_number(args[1])):
        args = (args[0], META, *args[2:])
    elif is_cuda(kwargs.get("device")) or is_number(kwargs.get("device")):
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


def _number(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """`tensor.item()`: PyTorch makes Python's own number of what it is answered."""
    found = _read(func, args, kwargs)
    unknown = type(found) is float and _on_meta(args[0]) and value_of(args[0]) is None
    return MadeUp(found) if unknown else found


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
