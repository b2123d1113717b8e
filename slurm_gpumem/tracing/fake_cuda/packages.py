"""Packages with CUDA code of their own: what bitsandbytes, flash_attn and Triton's kernels allocate."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.recorder import Recorder, add_handlers
from slurm_gpumem.tracing.engine.values import forget
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

# bitsandbytes: products with quantized weights, and paged states of optimizers. Quantization itself and 8-bit
# states need nothing: the package gives shapes for meta tensors, and its Python code allocates the rest. What
# is hidden in its CUDA kernels is written here as the Python that allocates the same, in the same order.
# Computed from the package's source (0.43 to 0.50); measured with 0.50.

_BITSANDBYTES = "bitsandbytes: allocations computed from its source (checked against runs with 0.50)"
PAGED = (
    "states of a paged optimizer lie in managed memory, which moves to the GPU only while there is room: "
    "they are not in this estimate"
)
_CUDA_OPERATORS = "bitsandbytes.backends.cuda.ops"
_FUSED_ROWS = 4
"""Rows of the input up to which every version multiplies without a whole weight."""


def install(recorder: ScriptRecorder, report: Report) -> None:
    """Wait for all of them."""
    _bitsandbytes(recorder, report)
    _flash_attn()
    _triton(recorder, report)


def _bitsandbytes(recorder: ScriptRecorder, report: Report) -> None:
    """Wait for the package."""

    def operators(module: Any) -> None:
        recorder.assume(_BITSANDBYTES)
        found: Dict[Any, Callable[..., Any]] = {}
        for name, rule in RULES.items():
            packet = getattr(torch.ops.bitsandbytes, name, None)
            if packet is not None:
                found[packet.default] = _noting_inside(rule)
        add_handlers(found)

    def functions(module: Any) -> None:
        def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
            report.note(PAGED)
            with recorder.unnoted():
                made: Any = torch.empty(shape, dtype=dtype, device="meta")
            with torch._C.DisableTorchFunction():
                recorder.skip(made)
            made.is_paged, made.page_deviceid = True, 0
            return made  # type: ignore[no-any-return]

        module.get_paged = get_paged
        module.prefetch_tensor = module.fill = lambda *args, **kwargs: None

    AfterImport({"bitsandbytes._ops": operators, "bitsandbytes.functional": functions}).install()


def _noting_inside(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule as the recorder calls it: what it allocates inside is noted, too."""

    def handler(recorder: ScriptRecorder, func: Any, args: Any, kwargs: Any) -> Any:
        if args[0].device.type != "meta":
            return func(*args, **kwargs)
        with recorder:
            return rule(*args, **kwargs)

    return handler


def _product_4bit(
    rows: Tensor,
    weight: Tensor,
    shape: List[int],
    absmax: Tensor,
    blocksize: int,
    kind: str,
    bias: Optional[Tensor] = None,
    absmax_8bit: Optional[Tensor] = None,
    absmax_code: Optional[Tensor] = None,
    absmax_offset: Optional[Tensor] = None,
) -> Tensor:
    """A fused kernel for few rows; else the weight as a whole in the input's type."""
    if _is_fused(rows, shape, blocksize):
        return rows.new_empty((*rows.shape[:-1], shape[0]))
    scales = []
    if absmax_8bit is not None and absmax_offset is not None:
        scales.append(torch.empty_like(absmax_8bit, dtype=torch.float32))
        scales.append(scales[0] + absmax_offset)
    whole = rows.new_empty(shape)
    return torch.nn.functional.linear(rows, whole, bias)


def _is_fused(rows: Tensor, shape: List[int], blocksize: int) -> bool:
    length = rows.shape[-1]
    count = rows.numel() // length
    operators: Any = sys.modules.get(_CUDA_OPERATORS)
    chooses = getattr(operators, "_gemm_4bit_use_custom_fn", None)
    most = getattr(operators, "_gemm_4bit_custom_max_m", None)
    if chooses is None or most is None:
        return count <= _FUSED_ROWS
    return count <= most and length % blocksize == 0 and bool(chooses(0, rows.dtype, count, shape[0], length))


def _quantized_rows(rows: Tensor, threshold: float = 0.0) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """Which columns are outliers depends on values: a few of thousands, counted as none."""
    stats = rows.new_empty(rows.numel() // rows.shape[-1], dtype=torch.float32)
    whole = torch.empty_like(rows, dtype=torch.int8)
    if not threshold:
        return whole, stats, None
    rows.abs() >= threshold  # noqa: B015 - allocates, and is gone
    return whole, stats, rows.new_empty(0, dtype=torch.int64)


def _product_8bit(
    rows: Tensor,
    weight: Tensor,
    row_stats: Tensor,
    weight_stats: Tensor,
    bias: Optional[Tensor] = None,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    sums = rows.new_empty((*rows.shape[:-1], weight.shape[0]), dtype=torch.int32)
    return torch.empty_like(sums, dtype=torch.float16).to(dtype or torch.float16)


def _mixed_product_8bit(
    rows: Tensor,
    quantized: Tensor,
    weight: Tensor,
    row_stats: Tensor,
    weight_stats: Tensor,
    outliers: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    product = _product_8bit(quantized, weight, row_stats, weight_stats, bias, rows.dtype)
    return product, rows.new_empty(0)


RULES: Dict[str, Callable[..., Any]] = {
    "gemm_4bit": _product_4bit,
    "int8_vectorwise_quant": _quantized_rows,
    "int8_scaled_mm": _product_8bit,
    "int8_mixed_scaled_mm": _mixed_product_8bit,
}


# The flash_attn package (2.6 and newer): what its backward pass takes inside. Its operators have shapes for
# meta tensors; the extension's own buffers are added here, by its source: gradients of queries summed in
# single precision, and keys and values once for each head that shares them. Computed, not measured. Older
# versions call the extension directly and cannot be traced.


_FLASH_ATTN = "flash_attn: buffers of its backward pass computed from its source, not measured"
_ROWS = 128
"""Queries are padded to multiples of it, in packed batches by as many for each text."""


def _flash_attn() -> None:
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
    recorder.assume(_FLASH_ATTN)
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


# Triton kernels: not run. They allocate nothing; the Python around them does, and is traced as it is. So
# packages of such kernels (Liger's fused cross-entropy, norms, rotary embeddings) come out as they
# allocate: logits in chunks, gradients made in the forward pass. Measured with Liger. Where this Python has
# no Triton and a library looks for it, the library takes another path than in a job whose Python has it
# (trl's loss: several copies of the logits instead of none). A note says so.


_TRITON = "Triton kernels: outputs as the Python around them allocates them (checked against runs of Liger)"


def _triton(recorder: Recorder, report: Report) -> None:
    """Wait for Triton."""

    def launches(module: Any) -> None:
        def getitem(kernel: Any, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                recorder.assume(_TRITON)
                with torch._C.DisableTorchFunction():
                    for value in (*args, *kwargs.values()):
                        if isinstance(value, torch.Tensor) and value.is_floating_point():
                            forget(value)  # it may have been written

            return launch

        module.KernelInterface.__getitem__ = getitem

    AfterImport({"triton.runtime.jit": launches}).install()
    sys.meta_path.append(_Missing(report.note))


class _Missing:
    """The last finder, which is asked only for what no other has found."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note: Optional[Callable[[str], None]] = note

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Nothing; note who looks for Triton, once."""
        if name != "triton" or self._note is None:
            return
        library = _asking()
        if library and library != "torch":  # which looks for it in any case
            self._note(
                f"{library} looked for Triton, which this Python does not have: if the job's has it, other "
                "code runs there, with other memory. Trace with the job's Python"
            )
            self._note = None


def _asking() -> str:
    """The package of the code that imports, or looks for, a module."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("importlib", "slurm_gpumem", ""):
            return "the script" if package == "__main__" else package
        frame = frame.f_back
    return ""
