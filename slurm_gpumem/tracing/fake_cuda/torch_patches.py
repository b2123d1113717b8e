"""Functions of PyTorch that a script calls and that must act otherwise while it is traced."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import _get_current_function_mode_stack
from torch.utils._contextlib import _DecoratorContextManager

from slurm_gpumem.tracing.fake_cuda import (
    compiled,
    packages,
    parallel,
)
from slurm_gpumem.tracing.fake_cuda.device import CUDA, FakeCuda, is_cuda
from slurm_gpumem.tracing.script import workers
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_PACKAGE = __name__.partition(".")[0]
_LARGE = 1 << 18
"""Elements of a weight from which its random numbers are left out: nobody looks at them."""
_BEYOND = 2
"""Iterations of L-BFGS that are run when its history is full: it drops the oldest direction."""
_SEEN_CHECKS = 4
"""Of distributions of one kind and shape that are run before the rest is left out ..."""
_MORE = 1.25
"""... until this much more is in memory."""
_INITS = ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_",
          "kaiming_normal_", "orthogonal_", "sparse_", "eye_", "dirac_")  # fmt: skip


def install(recorder: ScriptRecorder, fake: FakeCuda, report: Report) -> None:
    """Replace them, for the rest of the process's life."""
    _inference_as_no_grad()
    _keep_parameters()
    _flat_recurrent_weights()
    workers.install()
    _scripted_where_possible()
    _recorded_once()
    _no_large_numbers()
    _cuda_in_backward(fake)
    _loading()
    _few_searches()
    _few_checks(recorder)
    parallel.install(recorder, report)
    compiled.install(recorder, fake, report)
    packages.install(recorder, report)
    AfterImport(
        dict.fromkeys(("torch.utils.tensorboard.writer", "tensorboardX.writer"), _no_graphs)
    ).install()


def _few_searches() -> None:
    """L-BFGS keeps directions of `history_size` iterations: those after them need nothing new."""
    real: Callable[..., Any] = torch.optim.LBFGS.step

    @functools.wraps(real)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = self.param_groups[0]
        asked = group["max_iter"]
        group["max_iter"] = min(asked, group["history_size"] + _BEYOND)
        try:
            return real(self, *args, **kwargs)
        finally:
            group["max_iter"] = asked

    torch.optim.LBFGS.step = step  # type: ignore[method-assign]


def _few_checks(recorder: ScriptRecorder) -> None:
    """Distributions check their parameters and samples. Without gradients, as in thousands of steps of a
    rollout, they do so only beside clearly more than before: a rollout keeps its steps."""
    kind: Any = torch.distributions.Distribution
    real: Callable[..., Any] = kind.__init__
    checked: Dict[Any, Tuple[int, int]] = {}
    """How often those of one kind and shape were checked, and beside how many bytes at most."""

    @functools.wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        on_gpu = any(isinstance(one, torch.Tensor) and one.is_cuda for one in vars(self).values())
        if on_gpu and not torch.is_grad_enabled():
            key = (type(self), *map(str, args))
            times, beside = checked.get(key, (0, 0))
            if times >= _SEEN_CHECKS and recorder.live_bytes <= beside * _MORE:
                kwargs["validate_args"] = False
            else:
                checked[key] = times + 1, max(beside, recorder.live_bytes)
        real(self, *args, **kwargs)

    kind.__init__ = init


def _no_graphs(module: Any) -> None:
    """TensorBoard's picture of a model traces it by torch.jit, which cannot be done here: it is called."""

    def add_graph(self: Any, model: Any, input_to_model: Any = None, *args: Any, **kwargs: Any) -> None:
        if input_to_model is not None:
            model(*input_to_model) if isinstance(input_to_model, (tuple, list)) else model(input_to_model)

    module.SummaryWriter.add_graph = add_graph


class _InferenceMode(_DecoratorContextManager):
    """`torch.inference_mode` as `no_grad`: in the real one, operators come whole, not in their parts."""

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._before and not self._mode)

    def __exit__(self, *args: Any) -> None:
        torch.set_grad_enabled(self._before)

    def clone(self) -> Any:
        """For each call of a decorated function."""
        return self.__class__(self._mode)


def _inference_as_no_grad() -> None:
    torch.inference_mode = _InferenceMode  # type: ignore[misc,assignment]
    torch.autograd.grad_mode.inference_mode = _InferenceMode  # type: ignore[misc,assignment]
    torch.autograd.inference_mode = _InferenceMode  # type: ignore[misc,assignment]


def _keep_parameters() -> None:
    """A parameter that moves to the GPU stays the same object, as it does with CUDA."""
    future = getattr(torch, "__future__", None)
    if future is not None and hasattr(future, "set_swap_module_params_on_conversion"):
        _swap_or_make_new_ones(future)


def _swap_or_make_new_ones(future: Any) -> None:
    """Parameters that cannot be swapped (weights computed from others) become new ones.

    Only moves swap: a checkpoint that is loaded is copied, as it is without a trace.
    """
    real: Callable[..., Any] = nn.Module._apply

    def apply(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        apart = [*_without_shape(self, fn), *_moving_themselves(self, fn)]
        before = future.get_swap_module_params_on_conversion()
        future.set_swap_module_params_on_conversion(True)
        try:
            return real(self, fn, *args, **kwargs)
        except RuntimeError as error:
            if "swap" not in str(error):
                raise
            future.set_swap_module_params_on_conversion(False)
            return real(self, fn, *args, **kwargs)
        finally:
            future.set_swap_module_params_on_conversion(before)
            for holder, name, value in apart:
                holder[name] = value

    nn.Module._apply = apply  # type: ignore[method-assign]


def _without_shape(module: Any, fn: Callable[[Any], Any]) -> List[Tuple[Dict[str, Any], str, Any]]:
    """Parameters of lazy layers, taken out of a module: new ones where its others go."""
    found: List[Tuple[Dict[str, Any], str, Any]] = []
    for holder, options in ((module._parameters, ("requires_grad",)), (module._buffers, ())):
        for name, value in list(holder.items()):
            if is_lazy(value):
                like = fn(torch.empty(0, dtype=value.dtype))
                with torch._C.DisableTorchFunction():
                    device = like.device
                kept = {option: getattr(value, option) for option in options}
                kind: Any = type(value)
                found.append((holder, name, kind(device=device, dtype=like.dtype, **kept)))
                holder[name] = None
    return found


def _moving_themselves(module: Any, fn: Callable[[Any], Any]) -> List[Tuple[Dict[str, Any], str, Any]]:
    """Parameters of a type that says how it moves (quantized ones), moved and taken out of a module."""
    found: List[Tuple[Dict[str, Any], str, Any]] = []
    for name, value in list(module._parameters.items()):
        if isinstance(value, nn.Parameter) and type(value).to is not nn.Parameter.to:
            found.append((module._parameters, name, fn(value)))
            module._parameters[name] = None
    return found


def _flat_recurrent_weights() -> None:
    """A recurrent layer that moves to the GPU copies its weights into one buffer, unless they are bf16."""

    def flatten_parameters(self: Any) -> None:
        weights = self._flat_weights
        if not all(isinstance(w, torch.Tensor) for w in weights):
            return
        with torch._C.DisableTorchFunction():
            kinds = {(w.device.type, w.dtype) for w in weights}
        if len(kinds) != 1 or ("meta", torch.bfloat16) in kinds or kinds.pop()[0] != "meta":
            return
        with torch.no_grad():
            flat = torch.zeros(sum(w.numel() for w in weights), dtype=weights[0].dtype, device="cuda")
            for weight, part in zip(weights, flat.split([w.numel() for w in weights])):
                weight.data = part.view(weight.shape)

    nn.RNNBase.flatten_parameters = flatten_parameters  # type: ignore[method-assign]


def _recorded_once() -> None:
    """`torch.jit.trace` would record a model again and compare numbers, which there are none of here."""
    real: Any = torch.jit.trace

    @functools.wraps(real)
    def trace(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **{**kwargs, "check_trace": False})

    torch.jit.trace = trace


def _scripted_where_possible() -> None:
    """`torch.jit.script` cannot compile what calls a function that is replaced here: that runs as it is."""
    real: Any = torch.jit.script

    def script(obj: Any, *args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        try:
            return real(obj, *args, _frames_up=_frames_up + 1, **kwargs)  # names are looked up in the caller
        except Exception as error:
            if _PACKAGE not in str(error) or "_rcb" in kwargs:  # the script's own fault, or a part of it
                raise
            return obj

    torch.jit.script = script


def _no_large_numbers() -> None:
    """Random numbers of large weights on the CPU are left out: they cost seconds and decide nothing.

    Those on the GPU have no values: what draws again until all are in bounds would draw forever.
    """

    def lazily(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def init(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            endless = name == "trunc_normal_" and tensor.device.type == "cuda"
            return tensor if endless or tensor.numel() >= _LARGE else real(tensor, *args, **kwargs)

        return init

    for name in _INITS:
        if hasattr(nn.init, name):
            setattr(nn.init, name, lazily(name, getattr(nn.init, name)))


def _cuda_in_backward(fake: FakeCuda) -> None:
    """Python code of a backward pass (custom functions, hooks, what is computed again) meets "cuda" too.

    A mode is not at work in what it has handed on, and `loss.backward()` is handed on by it.
    """
    name = "_engine_run_backward"
    if not hasattr(torch.autograd.graph, name):
        return  # before PyTorch 2.2
    real = getattr(torch.autograd.graph, name)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if any(mode is fake for mode in _get_current_function_mode_stack()):
            return real(*args, **kwargs)
        with fake:
            return real(*args, **kwargs)

    for module in (torch.autograd, torch.autograd.graph):
        setattr(module, name, run_backward)


def _loading() -> None:
    """What was saved on a GPU, or is asked onto one, is loaded to the CPU and moved to "cuda" from there."""
    real: Callable[..., Any] = torch.load
    on_gpu: List[bool] = []

    def load(*args: Any, **kwargs: Any) -> Any:
        asked = args[1] if len(args) > 1 else kwargs.pop("map_location", None)
        on_gpu[:] = [is_cuda(asked)]

        def place(storage: Any, location: str) -> Any:
            location = asked.get(location, location) if isinstance(asked, dict) else location
            on_gpu.append(not is_cuda(asked) and str(location).startswith(("cuda", "meta")))
            return storage

        own = asked is not None and not is_cuda(asked) and not isinstance(asked, dict)
        file = args[:1] or (kwargs.pop("f"),)
        found = real(*file, asked if own else place, *args[2:], **kwargs)
        return _moved(found, CUDA) if any(on_gpu) else found

    def cuda(storage: Any, *args: Any, **kwargs: Any) -> Any:
        """`map_location=lambda storage, place: storage.cuda(0)`."""
        on_gpu.append(True)
        return storage

    torch.load = load
    kinds: Tuple[Any, ...] = (torch.UntypedStorage, torch.TypedStorage)
    for kind in kinds:
        kind.cuda = cuda


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, (torch.Tensor, nn.Module)):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)((key, _moved(item, device)) for key, item in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_moved(item, device) for item in value)
    return value
