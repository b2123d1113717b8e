"""Weights that accelerate keeps on the CPU (`device_map` with "cpu" or "disk"): not on the GPU between calls.

It leaves parameters on the meta device in their place, which is where a trace has its GPU; they are taken out
of the trace until a call loads them.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from slurm_gpumem.tracing.script.imports import AfterImport


def install(tracer: Any) -> None:
    """Wait for accelerate."""

    def hooks(module: Any) -> None:
        kind = getattr(module, "AlignDevicesHook", None)
        if kind is not None:
            kind.init_hook = _leaving(tracer.recorder, kind.init_hook)
            kind.post_forward = _leaving(tracer.recorder, kind.post_forward)

    AfterImport({"accelerate.hooks": hooks}).install()


def _leaving(recorder: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """The hook's function; what it left in place of weights on the CPU takes no memory."""

    def function(hook: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(hook, module, *args, **kwargs)
        if hook.offload:
            with torch._C.DisableTorchFunction():
                for parameter in module.parameters(recurse=hook.place_submodules):
                    recorder.leave(parameter)
        return result

    return function
