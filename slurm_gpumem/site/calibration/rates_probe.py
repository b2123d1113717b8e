"""One process of `gpumem calibrate --utilization`: train the reference jobs and report the step times.

    python -m slurm_gpumem.site.calibration.rates_probe

prints one JSON object. Needs PyTorch and a GPU; SM activity is read if NVML has GPM counters (Hopper on).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, Optional

from slurm_gpumem.site.calibration.nvml import GpmCounters, NvmlGpu
from slurm_gpumem.site.calibration.rates import REFERENCES, Reference

SECONDS = 0.5
WINDOWS = 5
"""The median of this many measurements counts, so that one disturbed by other work does not matter."""
_WARM_STEPS = 5


def main() -> int:
    """Measure all references and print the result."""
    # So that the numbers of CUDA_VISIBLE_DEVICES are NVML's.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if importlib.util.find_spec("torch") is None:
        return _say({"error": "no-torch", "detail": "no module named torch"})
    import torch

    if not torch.cuda.is_available():
        return _say({"error": "no-gpu", "detail": f"torch {torch.__version__} sees no CUDA device"})
    jobs: Dict[str, Dict[str, float]] = {}
    failed: Dict[str, str] = {}
    counters = _open_counters()
    for reference in REFERENCES:
        try:
            jobs[reference.name] = _measure(torch, reference, counters)
        except RuntimeError as error:
            failed[reference.name] = " ".join(str(error).split())[:200]
    properties = torch.cuda.get_device_properties(0)
    return _say(
        {
            "gpu": properties.name,
            "memory_mib": properties.total_memory >> 20,
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "jobs": jobs,
            "failed": failed,
        }
    )


def _say(result: Dict[str, Any]) -> int:
    print(json.dumps(result))
    return 1 if "error" in result else 0


def _measure(torch: Any, reference: Reference, counters: Optional[GpmCounters]) -> Dict[str, float]:
    step = _step(torch, reference)
    for _ in range(_WARM_STEPS):
        step()
    torch.cuda.synchronize()
    first = counters.now() if counters else None
    seconds = sorted(_seconds(torch, step) for _ in range(WINDOWS))
    taken = {"step_seconds": seconds[WINDOWS // 2], "fastest": seconds[0], "slowest": seconds[-1]}
    if counters and first is not None:
        last = counters.now()
        taken["sm_active"] = counters.between(first, last)["sm_active"]
        counters.free(first)
        counters.free(last)
    return taken


def _seconds(torch: Any, step: Callable[[], None]) -> float:
    """The time of a step, over a window."""
    begun = time.monotonic()
    count = 0
    while time.monotonic() - begun < SECONDS:
        step()
        count += 1
        if count % 3 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.monotonic() - begun) / count


def _step(torch: Any, reference: Reference) -> Callable[[], None]:
    """One training step of a reference, to be called repeatedly."""
    layers: List[Any] = []
    width = reference.inputs
    for size in reference.layers:
        layers.append(torch.nn.Linear(width, size) if size else torch.nn.GELU())
        width = size or width
    model = torch.nn.Sequential(*layers).cuda()
    precision = "high" if reference.precision == "tf32" else "highest"
    torch.set_float32_matmul_precision(precision)
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[reference.optimizer](model.parameters(), lr=1e-6)
    batch = torch.randn(reference.batch, reference.inputs, device="cuda")
    half = reference.precision == "amp-fp16"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16) if half else nullcontext():
            loss = model(batch).float().mean()
        loss.backward()
        optimizer.step()

    return step


def _open_counters() -> Optional[GpmCounters]:
    try:
        return NvmlGpu().counters()
    except (ModuleNotFoundError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main())
