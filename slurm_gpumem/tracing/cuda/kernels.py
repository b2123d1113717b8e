"""The GPU work of a training step, operator by operator: products, attention, norms and all others.

A dispatch mode sees every operator with its tensors. Each becomes a `Kernel`: a kind, sizes and bytes; equal
ones are counted. The GPU's speed and how it divides the work are not known here.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from slurm_gpumem.summaries.trace_types import Kernel, Polynomial
from slurm_gpumem.tracing.engine.values import is_view

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_NORMS = ("batch_norm", "layer_norm", "group_norm", "rms_norm", "instance_norm")
_FREE = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach",
         "aten::lift_fresh", "aten::_reshape_alias", "aten::set_", "aten::new_empty_strided",
         "aten::_local_scalar_dense", "aten::is_same_size", "aten::record_stream")  # fmt: skip
_GATHERS = ("aten::embedding", "aten::index", "aten::gather", "aten::index_select")
_SERIAL = ("upsample_linear1d", "upsample_linear1d_backward", "upsample_bicubic2d",
           "upsample_bicubic2d_backward", "upsample_trilinear3d", "upsample_trilinear3d_backward",
           "upsample_bilinear2d")  # fmt: skip
"""A thread of their CUDA kernels goes through batch and channels at one place of the result, so that small
results keep few multiprocessors busy for long."""
_MEANS = ("mean", "rstd", "save_mean", "save_invstd")
_BACKWARD_ATTENTION = 2.5
"""Its backward computes the scores again: five products, compared with the forward's two."""
VIEW, CAST = "view", "cast"
"""Operators that cost CPU time and are kept separate from other elementwise ones."""
Sizes = Tuple[int, ...]


class Kernels:
    """Counts the kernels of every step but the first, by phase."""

    def __init__(self) -> None:
        self.by_step: Dict[int, List[Kernel]] = {}
        """In order, one for each operator."""
        self._kinds: Dict[Any, str] = {}
        self._paused = False
        self._stopped = False

    def stop(self, step: int) -> None:
        """From this step on steps are not run whole: what they do is not what a step does."""
        if not self._stopped:
            self._stopped = True
            self.by_step = {known: kernels for known, kernels in self.by_step.items() if known < step}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is counted: this makes data that a real job would load."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def saw(self, where: Tuple[str, int], func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One operator that ran in a (phase, step)."""
        if not self._counts(where):
            return
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if not kind:
            return
        for name, sizes, moved, dtype in _MAKERS.get(kind, _pointwise)(kind, func, args, kwargs, result):
            self.add(where, name, sizes, moved, dtype)

    def _counts(self, where: Tuple[str, int]) -> bool:
        phase, step = where
        off = self._paused or self._stopped
        return step >= 2 and not off and phase in ("forward", "backward", "optimizer")

    def add(
        self, where: Tuple[str, int], kind: str, sizes: Sizes, moved: int, dtype: str, count: int = 1
    ) -> None:
        """One kernel, or `count` equal ones."""
        if not self._counts(where):
            return
        phase, step = where
        lines = tuple((int(size),) for size in sizes)
        made = Kernel(kind, phase, dtype, lines, (int(moved),), count)
        self.by_step.setdefault(step, []).append(made)


def assembled(by_step: Dict[int, List[Kernel]], batches: Sequence[int]) -> Tuple[Kernel, ...]:
    """The kernels of one step, sizes as linear functions through the two batch sizes if both did the same."""
    steps = sorted(by_step)
    if not steps:
        return ()
    first = by_step[steps[0]]
    last = by_step[steps[-1]]
    sizes = (batches[steps[0] - 1], batches[steps[-1] - 1])
    if sizes[0] != sizes[1]:
        waiting: Dict[Tuple[str, str, str, int], List[Kernel]] = {}
        for kernel in reversed(last):
            waiting.setdefault(_sort(kernel), []).append(kernel)
        grown = []
        for kernel in first:
            others = waiting.get(_sort(kernel))
            grown.append(_grown(kernel, others.pop(), sizes) if others else kernel)
        first = grown
    counted: Dict[Kernel, int] = {}
    for kernel in first:
        key = kernel._replace(times=1)
        counted[key] = counted.get(key, 0) + kernel.times
    return tuple(kernel._replace(times=times) for kernel, times in counted.items())


def _sort(kernel: Kernel) -> Tuple[str, str, str, int]:
    return kernel.kind, kernel.phase, kernel.dtype, len(kernel.sizes)


def _grown(a: Kernel, b: Kernel, batches: Tuple[int, int]) -> Kernel:
    def line(one: Polynomial, two: Polynomial) -> Polynomial:
        slope = (two[0] - one[0]) // (batches[1] - batches[0])
        return (one[0] - slope * batches[0], slope) if slope else one

    sizes = tuple(line(one, two) for one, two in zip(a.sizes, b.sizes))
    return a._replace(sizes=sizes, bytes=line(a.bytes, b.bytes))


# -- Operators -----------------------------------------------------------------------------------


def _kind_of(func: Any) -> str:
    """The kind of an operator: "" for one that launches no kernel and costs nothing."""
    name = str(func._schema.name)
    short = name.partition("::")[2]
    if name in _FREE:
        return ""
    if name in _PRODUCTS:
        return "gemm"
    if short in ("convolution", "convolution_backward"):
        return short
    if "scaled_dot_product" in short:
        return "attention"
    if short.startswith(("_foreach", "_fused_adam", "_fused_sgd", "_fused_adagrad")):
        return "foreach"
    if any(part in short for part in _NORMS):
        return "norm"
    if "pool" in short and "adaptive" not in short:
        return "pool"
    if short == "_to_copy":
        return CAST
    if name in _GATHERS:
        return "gather"
    if short in _SERIAL:
        return "serial"
    return VIEW if is_view(func) else "pointwise"


_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::mv": (0, 1),
    "aten::dot": (0, 1),
    "aten::addmv": (1, 2),
}
Made = Iterable[Tuple[str, Sizes, int, str]]


def _product(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Rows, columns, length of the sum, number of such products."""
    one, two = (args[place] for place in _PRODUCTS[func._schema.name])
    times = int(one.shape[0]) if one.dim() == 3 else 1
    rows = int(one.shape[-2]) if one.dim() > 1 else 1
    columns = int(two.shape[-1]) if two.dim() > 1 else 1
    yield kind, (rows, columns, int(one.shape[-1]), times), _bytes((one, two, result)), _dtype(one)


def _convolution(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """As a product in each group: positions, channels, length of the sum; then groups, weights per channel,
    positions for each one of the smaller side, whether it is channels last."""
    backward = kind == "convolution_backward"
    output, data, weight = args[:3] if backward else (result, args[0], args[1])
    options = args[4:10] if backward else args[3:9]
    transposed, groups = bool(options[3]), int(options[5])
    weights = weight.numel()
    macs = _places(data if transposed else output) * weights
    name = "conv" if groups == 1 else "depthwise" if int(weight.shape[1]) == 1 else "grouped"
    last = (
        data.dim() == 4 and data.is_contiguous(memory_format=torch.channels_last) and not data.is_contiguous()
    )

    taps = max(1, weights // max(1, int(weight.shape[0]) * int(weight.shape[1])))
    step = max(1, max(_places(data), _places(output)) // min(_places(data), _places(output)))

    def sizes(rows: int, columns: int) -> Sizes:
        reach = max(1, macs // max(1, rows * columns * groups))
        return rows, columns, reach, groups, taps, step, int(last)

    calls: List[Sizes] = []
    if not backward:
        calls.append(sizes(_places(output), int(output.shape[1]) // groups))
    else:
        if result[0] is not None:
            calls.append(sizes(_places(data), int(data.shape[1]) // groups))
        if result[1] is not None:
            columns = max(1, int(weight.shape[0]) // groups)
            calls.append(sizes(max(1, weights // groups // columns), columns))
    for found in calls:
        yield name, found, _bytes((data, weight, output)), _dtype(data)


def _places(tensor: Tensor) -> int:
    """Rows of the batch times pixels."""
    return max(1, tensor.numel() // max(1, int(tensor.shape[1])))


def _attention(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Floating-point operations and rows of queries (over all heads)."""
    backward = "backward" in func._schema.name
    query, key, value = args[1:4] if backward else args[:3]
    rows = int(query.shape[0]) * int(query.shape[1]) * int(query.shape[2])
    width = int(query.shape[3]) + int(value.shape[3])
    flops = 2 * rows * int(key.shape[2]) * width
    causal = kwargs.get("is_causal") is True or any(
        argument.name == "is_causal" and args[place] is True
        for place, argument in enumerate(func._schema.arguments[: len(args)])
    )
    flops = flops // 2 if causal else flops
    moved = _bytes((query, key, value)) + _bytes((query,))
    if backward:
        flops, moved = int(_BACKWARD_ATTENTION * flops), 2 * moved
    yield kind, (flops, rows), moved, _dtype(query)


def _norm(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Number of elements, and number of means over them: each is one block's work."""
    taken, made = list(_tensors(args)), list(_tensors((result,)))
    largest = max((tensor.numel() for tensor in (*taken, *made)), default=0)
    named = zip(func._schema.arguments, args)
    means = [value for argument, value in named if argument.name in _MEANS and isinstance(value, Tensor)]
    if "backward" not in func._schema.name:
        means = made[1:2]
    if largest:
        yield (
            kind,
            (largest, max((t.numel() for t in means), default=0)),
            _bytes(taken) + _bytes(made),
            _dtype(taken[0]),
        )


def _foreach(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Number of tensors and of their elements."""
    lists = [
        value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)
    ]
    if not lists:
        return
    first = [tensor for tensor in lists[0] if isinstance(tensor, Tensor)]
    elements = sum(tensor.numel() for tensor in first)
    moved = sum(_bytes(tensors) for tensors in lists) + _bytes(first)
    yield kind, (len(first), elements), moved, _dtype(first[0])


def _gather(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Only the selected rows of the table are read."""
    moved = 2 * _bytes((result,))
    numbers = result.numel() if isinstance(result, Tensor) else 0
    yield "pointwise", (numbers, numbers), moved, "fp32"


def _serial(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Places of the larger side, and numbers at each of them."""
    wide = args[0] if func._schema.name.endswith("_backward") else result
    taken = [args[0], result]
    if wide.dim() == 4 and wide.is_contiguous(memory_format=torch.channels_last) and not wide.is_contiguous():
        # With channels last each number has a thread.
        yield "pointwise", (wide.numel(), result.numel()), _bytes(taken), _dtype(wide)
        return
    places = wide.shape[2:].numel()
    if places:
        yield kind, (places, wide.numel() // places), _bytes(taken), _dtype(wide)


def _pointwise(kind: str, func: Any, args: Any, kwargs: Any, result: Any) -> Made:
    """Elements of the largest tensor, and how many are written: few if it is summed up."""
    taken = list(_tensors(args)) + list(_tensors(list(kwargs.values())))
    made = list(_tensors((result,)))
    if kind == VIEW:
        yield kind, (), 0, "fp32"
        return
    if not taken and not made:
        return
    largest = max((tensor.numel() for tensor in (*taken, *made)), default=0)
    if largest == 0:
        return
    written = sum(tensor.numel() for tensor in made)
    yield kind, (largest, written), _bytes(taken) + _bytes(made), _dtype((taken or made)[0])


_MAKERS: Dict[str, Callable[..., Made]] = {
    "gemm": _product,
    "convolution": _convolution,
    "convolution_backward": _convolution,
    "attention": _attention,
    "foreach": _foreach,
    "norm": _norm,
    "gather": _gather,
    "serial": _serial,
}


def _tensors(values: Any) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _bytes(tensors: Iterable[Optional[Tensor]]) -> int:
    """Bytes of tensors; for one that repeats its values (expanded), those in its storage."""
    total = 0
    for tensor in tensors:
        # The parts of a sparse gradient are counted where they are made.
        if tensor is not None and tensor.layout == torch.strided:
            total += min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    return total


def _dtype(tensor: Tensor) -> str:
    return _DTYPES.get(tensor.dtype, "fp32")
