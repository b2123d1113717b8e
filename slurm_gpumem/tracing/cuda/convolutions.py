"""Convolutions as cuDNN and CUDA run them: order of results, copies of non-contiguous tensors, workspaces."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.summaries.trace_types import Convolution
from slurm_gpumem.tracing.cuda.layouts import channels_last, copies, laid_out, lies_so, size_of
from slurm_gpumem.tracing.cuda.reductions import long_sum
from slurm_gpumem.tracing.engine.recording import Recording

aten = torch.ops.aten
_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
FORWARD, BACKWARD = "aten::convolution", "aten::convolution_backward"
_AS_PICTURES = (
    "gradients of gradients of convolutions are computed with kernels as large as pictures, for which cuDNN "
    "may take several times the memory of the pictures; that was not measured, and the job may need more. "
    "Let one run be measured: gpusbatch without --trace"
)
_LONGEST_MEASURED = 32
"""The longest side of a 2-D kernel whose workspaces were measured."""
_NO_CHANNELS = (
    "{} has no channels left: which ones a script removes depends on values, which a trace does not have. "
    "What comes after it may need more. Let one run be measured: gpusbatch without --trace"
)


def _convolution(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    data, weight = args[:2]
    last = _last(data, weight)
    made = copies(recorder, FORWARD, [data], last)
    result = laid_out(func(*args, **kwargs), last)
    recorder.note(result, FORWARD)
    recorder.uses_conv = True
    if last:
        made += copies(recorder, FORWARD, [weight], last)
    if not weight.numel():
        recorder.warn_once("no channels", _NO_CHANNELS.format(recorder.places.now() or "a layer"))
    if recorder.phase == "backward" and data.dim() == 4 and min(weight.shape[2:]) > _LONGEST_MEASURED:
        recorder.warn_once("kernels as large as pictures", _AS_PICTURES)
    recorder.workspace(0, FORWARD, describe("forward", data, weight, result, args[3:9]))
    for number in reversed(made):
        recorder.drop(number)
    return result


def _convolution_backward(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients are computed one after the other: input, weight, bias."""
    gradient, data, weight = args[:3]
    options, wanted = args[4:10], args[10]
    last = _last(data, weight)
    depthwise = _cuda_depthwise(data, weight, options, last)
    result = [None if one is None else laid_out(one, last) for one in func(*args, **kwargs)]
    recorder.uses_conv = True
    whole = copies(recorder, BACKWARD, [data], last) if wanted[1] or data.dim() == 3 else []
    again = not lies_so(gradient, last)
    if again and (depthwise or options[3] or channels_last(gradient) != channels_last(data)):
        # One copy serves both gradients; otherwise each makes its own.
        whole.append(recorder.take(size_of(gradient), BACKWARD))
        again = False
    for index, call in enumerate(("input", "weight")):
        found = result[index]
        if found is None:
            continue
        own = []
        if again and call == "weight":
            own.append(recorder.take(size_of(gradient), BACKWARD))
        recorder.note(found, BACKWARD)
        if call == "input":
            own += copies(recorder, BACKWARD, [weight], last) if last else []
            own += [recorder.take(size_of(gradient), BACKWARD)] if again else []
        recorder.workspace(0, BACKWARD, describe(call, data, weight, gradient, options))
        for number in reversed(own):
            recorder.drop(number)
    for number in reversed(whole):
        recorder.drop(number)
    if result[2] is not None:
        recorder.note(result[2], BACKWARD)
        if channels_last(gradient) and gradient.numel():
            # Summed like the rows of a matrix, with channels as its columns.
            rows, channels = gradient.numel() // gradient.shape[1], int(gradient.shape[1])
            recorder.workspace(0, BACKWARD, long_sum(rows, channels, channels))
    return tuple(result)


def _last(data: Tensor, weight: Tensor) -> bool:
    """Whether a 2-D convolution runs channels last."""
    return data.dim() == 4 and (channels_last(data) or channels_last(weight))


def _cuda_depthwise(data: Tensor, weight: Tensor, options: Any, last: bool) -> bool:
    """Whether PyTorch's own kernel runs it, not cuDNN's."""
    transposed, groups = options[3], options[5]
    return not last and not transposed and groups > 1 and groups == data.shape[1]


def describe(call: str, data: Tensor, weight: Tensor, output: Tensor, options: Any) -> Optional[Convolution]:
    """The request to cuDNN; None where nothing is to be done: no pictures, or no channels."""
    if not (data.numel() and weight.numel() and output.numel()):
        return None
    stride, padding, dilation, transposed, _, groups = options
    spatial = data.dim() - 2
    return Convolution(
        call=call,
        dtype=_DTYPES.get(data.dtype, "fp32"),
        batch=(int(data.shape[0]),),
        channels=int(data.shape[1]),
        outputs=int(output.shape[1]),
        size=_ints(data.shape[2:]),
        out_size=_ints(output.shape[2:]),
        kernel=_ints(weight.shape[2:]),
        stride=_spread(stride, spatial),
        padding=_spread(padding, spatial),
        dilation=_spread(dilation, spatial),
        groups=int(groups),
        transposed=bool(transposed),
        channels_last=_last(data, weight),
    )


def _ints(sizes: Any) -> Tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _spread(values: Any, count: int) -> Tuple[int, ...]:
    sizes = _ints(values)
    return sizes if len(sizes) == count else sizes * count


CONVOLUTIONS: Dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
