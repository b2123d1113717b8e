"""Triton kernels: not run. They allocate nothing; the Python around them does, and is traced as it is.

So packages of such kernels (Liger's fused cross-entropy, norms, rotary embeddings) come out as they allocate:
logits in chunks, gradients made in the forward pass. Measured with Liger.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.values import forget

COMPUTED = "Triton kernels: outputs as the Python around them allocates them (checked against runs of Liger)"


def install(tracer: Any) -> None:
    """Wait for Triton."""

    def launches(module: Any) -> None:
        def getitem(kernel: Any, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                tracer.recorder.assume(COMPUTED)
                with torch._C.DisableTorchFunction():
                    for value in (*args, *kwargs.values()):
                        if isinstance(value, torch.Tensor) and value.is_floating_point():
                            forget(value)  # it may have been written

            return launch

        module.KernelInterface.__getitem__ = getitem

    AfterImport({"triton.runtime.jit": launches}).install()
