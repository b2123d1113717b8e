"""Triton kernels: not run. They allocate nothing; the Python around them does, and is traced as it is.

So packages of such kernels (Liger's fused cross-entropy, norms, rotary embeddings) come out as they allocate:
logits in chunks, gradients made in the forward pass. Measured with Liger.

Where this Python has no Triton and a library looks for it, the library takes another path than in a job whose
Python has it (trl's loss: several copies of the logits instead of none). A note says so.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional

import torch

from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.engine.values import forget
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report

COMPUTED = "Triton kernels: outputs as the Python around them allocates them (checked against runs of Liger)"


def install(recorder: Recorder, report: Report) -> None:
    """Wait for Triton."""

    def launches(module: Any) -> None:
        def getitem(kernel: Any, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                recorder.assume(COMPUTED)
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
