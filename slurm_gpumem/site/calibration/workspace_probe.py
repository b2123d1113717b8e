"""One process of `gpumem calibrate`: what cuDNN takes for a list of convolutions, and attention.

    python -m slurm_gpumem.site.calibration.workspace_probe

prints one JSON object. Needs PyTorch and a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any, Dict, List, Tuple

from slurm_gpumem.site.calibration.workspace_list import Case, cases

LIMIT_S = 25.0
"""What is not measured by then is left out."""
_FAILED = -1


def main() -> int:
    """Measure every case and print the result."""
    if importlib.util.find_spec("torch") is None:
        return _say({"error": "no-torch", "detail": "no module named torch"})
    import torch

    if not torch.cuda.is_available():
        return _say({"error": "no-gpu", "detail": f"torch {torch.__version__} sees no CUDA device"})
    torch.empty(1, device="cuda")
    started = time.monotonic()
    measured: List[Tuple[int, List[int]]] = []
    for number, case in enumerate(cases()):
        if time.monotonic() - started > LIMIT_S:
            break
        measured.append((number, measure(torch, case, "cuda")))
    return _say(
        {
            "cases": measured,
            "seconds": round(time.monotonic() - started, 1),
            "benchmark": bool(torch.backends.cudnn.benchmark),
            "attention": _attention(torch),
        }
    )


def _say(result: Dict[str, Any]) -> int:
    print(json.dumps(result))
    return 1 if "error" in result else 0


def measure(torch: Any, case: Case, device: str) -> List[int]:
    """Bytes beyond the results for the forward call and both gradients; -1 where the GPU refuses."""
    shape, side = case.shape, case.shape.kernel // 2
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    call = ([shape.stride] * 2, [side] * 2, [1, 1], False, [0, 0], shape.groups)
    found = [_FAILED] * 3
    try:
        data = torch.randn(case.batch, shape.channels, shape.size, shape.size, device=device, dtype=dtype)
        weight = torch.randn(
            shape.outputs,
            shape.channels // shape.groups,
            shape.kernel,
            shape.kernel,
            device=device,
            dtype=dtype,
        )
        gradient = torch.randn(
            case.batch, shape.outputs, case.out_size, case.out_size, device=device, dtype=dtype
        )
        convolution, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
        found[0] = _beyond(torch, lambda: (convolution(data, weight, None, *call),))
        for place, mask in ((1, [True, False, False]), (2, [False, True, False])):
            found[place] = _beyond(
                torch, lambda mask=mask: backward(gradient, data, weight, None, *call, mask)
            )
    except RuntimeError as error:
        if "out of memory" not in str(error):
            print(f"{case}: {error}", file=sys.stderr)
    torch.cuda.empty_cache()
    return found


def _beyond(torch: Any, call: Any) -> int:
    """Bytes at the peak of a call beyond what it leaves."""
    call()  # the first one loads libraries and may hold what stays
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    torch.cuda.synchronize()
    beyond = int(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())
    del results
    return beyond


def _attention(torch: Any) -> Dict[str, float]:
    """MiB of a causal attention beyond its output, by precision: much where it is not fused."""
    found: Dict[str, float] = {}
    for name in ("float32", "float16", "bfloat16"):
        try:
            q = torch.randn(8, 8, 1024, 64, device="cuda", dtype=getattr(torch, name))

            def call(q: Any = q) -> Any:
                return (torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),)

            found[name] = round(_beyond(torch, call) / 2**20, 1)
        except RuntimeError as error:
            print(f"attention in {name}: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
