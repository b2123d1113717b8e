"""Safe GPU sharing on Slurm: know a job's GPU memory before it runs, and ask for just that much."""

from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"
__all__ = [
    "Decision",
    "Estimate",
    "GpumemError",
    "ModelSummary",
    "Submitted",
    "decide",
    "estimate",
    "save_summary",
    "submit",
    "summarize",
]

_HOME_OF = {
    "Decision": "slurm_gpumem.submission.decision",
    "Estimate": "slurm_gpumem.estimators.types",
    "GpumemError": "slurm_gpumem.errors",
    "ModelSummary": "slurm_gpumem.summaries.types",
    "Submitted": "slurm_gpumem.api",
    "decide": "slurm_gpumem.api",
    "estimate": "slurm_gpumem.api",
    "save_summary": "slurm_gpumem.summaries.parsers.own",
    "submit": "slurm_gpumem.api",
    "summarize": "slurm_gpumem.tracing.model.live",
}

if TYPE_CHECKING:
    from slurm_gpumem.api import Submitted, decide, estimate, submit
    from slurm_gpumem.errors import GpumemError
    from slurm_gpumem.estimators.types import Estimate
    from slurm_gpumem.submission.decision import Decision
    from slurm_gpumem.summaries.parsers.own import save_summary
    from slurm_gpumem.summaries.types import ModelSummary
    from slurm_gpumem.tracing.model.live import summarize


def __getattr__(name: str) -> Any:
    # Lazy, so that `import slurm_gpumem` costs nothing on the submit path.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME_OF[name]), name)
