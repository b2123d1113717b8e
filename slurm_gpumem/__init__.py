"""Safe GPU sharing on Slurm: know a job's GPU memory before it runs, and ask for just that much."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Estimate", "GpumemError", "estimate", "summarize"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import slurm_gpumem` costs nothing on the submit path.
    if name == "estimate":
        from slurm_gpumem.api import estimate

        return estimate
    if name == "summarize":
        from slurm_gpumem.tracing.trace_model import summarize

        return summarize
    if name == "Estimate":
        from slurm_gpumem.estimators.types import Estimate

        return Estimate
    if name == "GpumemError":
        from slurm_gpumem.errors import GpumemError

        return GpumemError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
