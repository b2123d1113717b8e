"""What leaves the GPU: copies to the CPU, truths, lists, f-strings, and the gradient scaler's questions.

Meta tensors have no numbers. Known ones are given (see `values`), others are made up, so that code goes on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import Tensor

from slurm_gpumem.tracing.cuda.sparse_products import parts_of, sparse_on_cpu, sparse_on_meta
from slurm_gpumem.tracing.engine.memo import overloads
from slurm_gpumem.tracing.engine.recording import GOLDEN, Recording
from slurm_gpumem.tracing.engine.unknown_values import are_chances, choices_of, may_be_whole, share_of
from slurm_gpumem.tracing.engine.value_dependent_code import loop_answer, wanted
from slurm_gpumem.tracing.engine.values import give, is_wrapped, made_up_numbers, value_of

aten = torch.ops.aten
_REPEATED = 4093
Handler = Callable[[Any, Any, Any, Any], Any]


def numbers_of(tensor: Tensor, dtype: Any = None) -> Tensor:
    """A meta tensor's numbers on the CPU: the known ones, or made-up ones, zeros for whole numbers.

    What a layer computes differs from place to place, so that it has quantiles, and a least that is not its
    most. It is between a half and one, as what may be probabilities, and begins with one.

    A mask holds where its share says, and everywhere if nothing is known of it, as where it selects.

    An index among several choices gets each of them equally often, beginning in the middle: the first is
    often one that is never taken (the mean of a spectrum, by which code then divides).
    """
    known = value_of(tensor)
    kind = dtype or tensor.dtype
    if known is not None:
        return known.to(kind, copy=True)
    choices = choices_of(tensor)
    if choices is not None:
        return ((torch.arange(tensor.numel()) + choices // 2) % choices).view(tensor.shape).to(kind)
    if parts_of(tensor):
        return sparse_on_cpu(tensor, kind)
    if tensor.dtype == torch.bool:
        share = share_of(tensor)
        count = tensor.numel() if share is None else round(share * tensor.numel())
        return (torch.arange(tensor.numel()) < count).view(tensor.shape).to(kind)
    if are_chances(tensor) and kind.is_floating_point and tensor.numel():
        return _chances(tensor.shape, kind)
    if tensor.is_floating_point() and kind.is_floating_point and not may_be_whole(tensor):
        return _different(tensor.numel(), kind).view(tensor.shape)
    made = torch.ones if kind.is_floating_point else torch.zeros
    return made(tensor.shape, dtype=kind)


def _chances(shape: torch.Size, kind: torch.dtype) -> Tensor:
    """One of them in each row is large, another one in the next; they sum up to one, as code may want."""
    count = shape[-1]
    rows = shape.numel() // count
    most = _different(rows + 1, torch.float64)[1:, None]
    made = ((1 - most) / max(1, count - 1)).repeat(1, count)
    made.scatter_(1, torch.arange(rows)[:, None] % count, most if count > 1 else torch.ones_like(most))
    return made.view(shape).to(kind)


def _different(count: int, kind: torch.dtype) -> Tensor:
    """Numbers that repeat themselves after a prime number of them: rows of an image differ, too."""
    some = 1 - (torch.arange(min(count, _REPEATED)) * GOLDEN) % 1 / 2
    return some.to(kind).repeat(-(-count // _REPEATED))[:count]


def _to_copy(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    source, device, waits = args[0], kwargs.get("device"), not kwargs.get("non_blocking")
    if source.layout != torch.strided and (device or source.device).type == "meta":
        return sparse_on_meta(source, kwargs.get("dtype"))
    if source.device.type != "meta" or device is None or device.type == "meta":
        result = func(*args, **kwargs)
        if source.device.type == "cpu" and result.device.type == "meta" and result.layout == torch.strided:
            recorder.note(result, func._schema.name)
            _between(recorder, func, result, source, fresh=True, waits=waits)
        return result
    if value_of(source) is None:
        made_up_numbers(recorder, source)
        recorder.assume("values that are copied to the CPU are not known; made some up")
    found = numbers_of(source, kwargs.get("dtype"))
    _between(recorder, func, found, source, fresh=True, waits=waits)
    return found


def _copy(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[:2]
    waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    if target.device.type == "meta":
        _between(recorder, func, target, source, fresh=False, waits=waits)
        return target
    if source.device.type == "meta":
        _between(recorder, func, target, source, fresh=False, waits=waits)
        return func(target, numbers_of(source), *args[2:], **kwargs)
    return func(*args, **kwargs)


def _between(
    recorder: Recording, func: Any, target: Tensor, source: Tensor, *, fresh: bool, waits: bool
) -> None:
    """A copy between CPU and GPU moves one piece: a tensor with gaps is put together on the GPU first.

    A `fresh` target lies as its source does. Types are converted on the CPU, or on the GPU if nobody waits
    for the copy (PyTorch's Copy.cu).
    """
    to_gpu = target.device.type == "meta"
    on_gpu = target if to_gpu else source
    if to_gpu == (source.device.type == "meta") or on_gpu.layout != torch.strided or is_wrapped(on_gpu):
        return
    same = target.dtype == source.dtype
    alike = fresh or target.stride() == source.stride()
    if same and alike and torch.empty_like(on_gpu, device="meta").stride() == on_gpu.stride():
        return
    if not same and not waits:
        of_other_type = source if to_gpu else target
        recorder.workspace(on_gpu.numel() * of_other_type.element_size(), func._schema.name)
    elif not on_gpu.is_contiguous():
        recorder.workspace(on_gpu.numel() * on_gpu.element_size(), func._schema.name)


def _truth(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`torch.equal`, `is_nonzero`: a Python truth of tensors whose numbers are not known."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if all(tensor.device.type != "meta" for tensor in tensors):
        return func(*args, **kwargs)
    if all(tensor.device.type != "meta" or value_of(tensor) is not None for tensor in tensors):
        return func(
            *[
                numbers_of(arg) if isinstance(arg, Tensor) and arg.device.type == "meta" else arg
                for arg in args
            ]
        )
    check = wanted()
    if check is not None:
        return check
    recorder.guess.used = True
    return loop_answer(recorder, recorder.guess.truth)


def _split(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Pieces whose sizes were read from the GPU: where made-up ones do not add up, about equal pieces do."""
    data, sizes = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if data.device.type == "meta" and recorder.guess.numbers and sizes and sum(sizes) != data.shape[dim]:
        recorder.assume_equal_shares("pieces of a tensor")
        sizes = recorder.shares.parts(int(data.shape[dim]), len(sizes))
    return func(data, sizes, dim)


def _pack(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Sequences of lengths that were read from the GPU: made-up ones become the longest that there may be.

    A whole number that is made up is zero or one; that all of several steps are padding is never meant.
    """
    data, lengths, batch_first = args
    longest = int(data.shape[1 if batch_first else 0])
    if data.device.type == "meta" and recorder.guess.numbers and lengths.numel():
        least, most = int(lengths.min()), int(lengths.max())
        if least < 1 or most > longest or most == 1:
            recorder.assume("lengths of packed sequences are not known; took the padded length")
            lengths = torch.full_like(lengths, longest)
    return func(data, lengths, batch_first)


def _left_aligned(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A transformer in evaluation asks whether it may leave out what is padded: no, it has all of it."""
    return func(*args, **kwargs) if args[0].device.type != "meta" else False


def _unscale(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """GradScaler divides the gradients in place and looks for infinities, of which there are none."""
    if args[0] and args[0][0].device.type != "meta":
        return func(*args, **kwargs)
    give(args[1], torch.zeros(args[1].shape))
    return None


def _update_scale(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].device.type != "meta":
        return func(*args, **kwargs)
    return args[0]


READS: Dict[Any, Handler] = {
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten.split_with_sizes.default: _split,
    aten._pack_padded_sequence.default: _pack,
    **dict.fromkeys(overloads("equal", "is_nonzero", "allclose"), _truth),
    **dict.fromkeys(overloads("_amp_foreach_non_finite_check_and_unscale_"), _unscale),
    **dict.fromkeys(overloads("_amp_update_scale_"), _update_scale),
    **dict.fromkeys(overloads("_nested_tensor_from_mask_left_aligned"), _left_aligned),
}
