"""`torch.compile`: the graphs that PyTorch's compiler would get, and what it would hold of them in memory.

AOTAutograd makes them here as on a GPU: forward and backward pass are traced together, and its partitioner
decides what is saved between them and what is computed again. No kernel is generated (`tracing.cuda.fused`),
so neither Triton nor a compiler is needed. What cannot be traced so runs as eager PyTorch.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.cuda.fused import Fused
from slurm_gpumem.tracing.fake_cuda.cuda_answers import FURTHER_STREAM
from slurm_gpumem.tracing.fake_cuda.device import FakeCuda
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

EAGER = (
    "torch.compile: traced as eager PyTorch where the compiler's graph cannot be had; it usually needs less"
)
_MOST_GRAPHS = 6
"""Of one model, for different shapes; the compiler's own limit is eight."""
_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs, on a stream of their own."""
_COMPOSITE = "CompositeImplicitAutograd"
_ENGINE = [
    (owner, name, getattr(owner, name))
    for owner, name in (
        (torch.autograd, "grad"),
        (torch.autograd, "_engine_run_backward"),
        (torch.autograd.graph, "_engine_run_backward"),
    )
    if hasattr(owner, name)
]
"""Functions that are replaced later, as they are without a trace."""


def install(recorder: ScriptRecorder, fake: FakeCuda, report: Report) -> None:
    """Replace it, for the rest of the process's life."""

    def compiled(function: Callable[..., Any], modules: List[nn.Module]) -> _Compiled:
        return _Compiled(recorder, fake, report, function, modules)

    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        by_package = "site-packages" in sys._getframe(1).f_code.co_filename
        if model is None:
            return lambda function: function if by_package else compile(function, *args, **kwargs)
        if kwargs.get("disable") or not callable(model):
            return model
        if kwargs.get("mode") in _GRAPHS:
            recorder.once("stream", FURTHER_STREAM, "stream")
        if isinstance(model, nn.Module):
            return _of_module(compiled, model)
        return model if by_package else compiled(model, [])  # packages decorate what nobody may call

    torch.compile = compile
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "cudagraph_mark_step_begin"):
        torch.compiler.cudagraph_mark_step_begin = lambda: None

    def in_place(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        _of_module(compiled, self)

    nn.Module.compile = in_place  # type: ignore[method-assign]


def _of_module(compiled: Callable[[Any, List[nn.Module]], Any], model: nn.Module) -> nn.Module:
    if "_orig_mod" in vars(model):
        return model
    plain = object.__new__(type(model))  # with the same weights; not itself, which has no end
    vars(plain).update(vars(model))
    vars(model)["_orig_mod"] = plain
    inner: Any = model.module if type(model).__name__.endswith("DataParallel") else model
    vars(inner)["forward"] = compiled(inner.forward, [inner])
    return model


class _Compiled:
    """A compiled model's `forward`, or a compiled function."""

    at_work = False
    """Inside of another one, which is traced as a whole."""

    def __init__(
        self,
        recorder: ScriptRecorder,
        fake: FakeCuda,
        report: Report,
        function: Callable[..., Any],
        modules: List[nn.Module],
    ) -> None:
        self._recorder, self._fake, self._report = recorder, fake, report
        self._function, self._modules = function, modules
        self._graphs: Dict[Any, Any] = {}
        self._told = False
        owner = type(modules[0]) if modules else function
        self.__name__ = getattr(owner, "__name__", "a function")

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """As a method of a class."""
        return self if owner is None else lambda *args, **kwargs: self(owner, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _Compiled.at_work:
            return self._function(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        modules = [*self._modules, *(leaf for leaf in leaves if isinstance(leaf, nn.Module))]
        state = [_state(module) for module in modules]
        key = self._key(leaves, spec, modules)
        if key not in self._graphs and len(self._graphs) < _MOST_GRAPHS:
            self._graphs[key] = self._traced(leaves, spec, modules, state)
        graph = self._graphs.get(key)
        if graph is None:
            if not self._told:
                self._report.note(f"{EAGER} ({self.__name__})")
            self._told = True
            return self._function(*args, **kwargs)
        return graph(state, [leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _key(self, leaves: List[Any], spec: Any, modules: List[nn.Module]) -> Any:
        half = self._recorder.half()
        trained = tuple((id(m), m.training, tuple(p.requires_grad for p in m.parameters())) for m in modules)
        return (torch.is_grad_enabled(), half, trained, str(spec), tuple(_described(leaf) for leaf in leaves))

    def _traced(
        self, leaves: List[Any], spec: Any, modules: List[nn.Module], state: List[Dict[str, Tensor]]
    ) -> Optional[Callable[..., Any]]:
        """The function with compiled graphs, after their first call; None where that fails."""
        try:
            from torch._functorch.aot_autograd import aot_function
            from torch._functorch.partitioners import min_cut_rematerialization_partition
            from torch._inductor import lowering  # noqa: F401 - decompositions ask it
            from torch._inductor.decomposition import select_decomp_table
        except ImportError:  # an older PyTorch
            return None
        _composites_on_meta()
        recorder, fake = self._recorder, self._fake

        def plain(states: List[Dict[str, Tensor]], tensors: List[Tensor]) -> Any:
            given = iter(tensors)
            whole = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(whole, spec)
            with ExitStack() as stack:
                for module, values in zip(modules, states):
                    swapped = nn.utils.stateless._reparametrize_module(module, values, tie_weights=True)
                    stack.enter_context(swapped)
                stack.enter_context(fake)
                return self._function(*args, **kwargs)

        def compiled(gm: Any, example_inputs: Any) -> Any:
            return Fused(gm, recorder, _belongs_to_others)

        function = aot_function(
            plain,
            fw_compiler=compiled,
            bw_compiler=compiled,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )
        before = [(part, dict(vars(part))) for module in modules for part in module.modules()]
        try:
            with _nothing_traced(recorder):
                function(state, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        except Exception:  # noqa: BLE001 - whatever the compiler's tracing does not take runs eagerly
            return None
        finally:
            kept = _keeps_results(before)
        return None if kept else function


def _keeps_results(before: List[Any]) -> bool:
    """Whether a model has kept tensors that it computed; they are the compiler's, and are taken away."""
    found = False
    for part, attributes in before:
        for name, value in list(vars(part).items()):
            if attributes.get(name) is not value and any(map(torch.is_tensor, pytree.tree_leaves(value))):
                found = True
                vars(part).pop(name)
                vars(part).update({name: attributes[name]} if name in attributes else {})
    return found


@lru_cache(maxsize=1)
def _composites_on_meta() -> None:
    """Operators that are made of others are taken apart: with PyTorch's kernels for meta tensors, which are
    for those that are not differentiated, they would have no gradient."""
    key = torch._C.DispatchKey.Meta
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.partition("::")[2].partition(".")
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
            operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operator is not None and operator.py_kernels.pop(key, None) is not None:
                operator._dispatch_cache.clear()


def _state(module: nn.Module) -> Dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad
    return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else id(leaf)


def _belongs_to_others(node: Node) -> bool:
    """Weights, batches and the gradients that the backward pass gets; what was saved for it is its own."""
    return node.op != "placeholder" or node.name.startswith(("primals", "tangents", "arg"))


@contextmanager
def _nothing_traced(recorder: ScriptRecorder) -> Iterator[None]:
    """Inside, PyTorch's own tracing is alone with the tensors, and nothing is noted."""
    from torch.utils._python_dispatch import _disable_current_modes

    autocast = recorder._autocast
    modes = []
    while _get_current_function_mode_stack():
        modes.append(_pop_mode())
    cache, autocast.cache = autocast.cache, {}
    replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in _ENGINE]
    for owner, name, real in _ENGINE:
        setattr(owner, name, real)
    _Compiled.at_work = True
    try:
        with _disable_current_modes(), recorder.paused():
            yield
    finally:
        _Compiled.at_work = False
        autocast.cache = cache
        for owner, name, function in replaced:
            setattr(owner, name, function)
        for mode in reversed(modes):
            torch.overrides._push_mode(mode)
