"""The flash_attn package (2.6 and newer): what its backward pass takes inside.

Its operators have shapes for meta tensors; the extension's own buffers are added here, by its source:
gradients of queries summed in single precision, and keys and values once for each head that shares them.
Computed, not measured. Older versions call the extension directly and cannot be traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict

import torch

from slurm_gpumem.tracing.engine.recorder import add_handlers
from slurm_gpumem.tracing.script.imports import AfterImport

if TYPE_CHECKING:
    from slurm_gpumem.tracing.engine.recorder import Recorder

COMPUTED = "flash_attn: buffers of its backward pass computed from its source, not measured"
_ROWS = 128
"""Queries are padded to multiples of it, in packed batches by as many for each text."""


def install() -> None:
    """Wait for the package."""

    def operators(module: Any) -> None:
        found: Dict[Any, Callable[..., Any]] = {}
        for name in ("_flash_attn_backward", "_flash_attn_varlen_backward"):
            packet = getattr(torch.ops.flash_attn, name, None)
            if packet is not None:
                found[packet.default] = _backward
        add_handlers(found)

    AfterImport({"flash_attn.flash_attn_interface": operators}).install()


def _backward(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    query, key = args[1], args[2]
    if query.device.type != "meta":
        return result
    recorder.assume(COMPUTED)
    name = func._schema.name
    recorder.note_result(result, name)
    *lengths, heads, size = (int(n) for n in query.shape)
    packed = len(lengths) == 1
    rows = lengths[0] + _ROWS * (args[9].numel() - 1) if packed else lengths[0] * _padded(lengths[1], _ROWS)
    wide = _padded(size, 32 if size <= 128 else 64)
    taken = [recorder.take(rows * heads * wide * 4, name)]
    shared = int(key.shape[-2])
    if shared != heads:
        each = key.numel() // shared * heads * key.element_size()
        taken += [recorder.take(each, name) for _ in ("keys", "values")]
    for number in taken:
        recorder.drop(number)
    return result


def _padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
