"""The estimator `trace`: our own summaries' allocations, replayed through the caching allocator."""

from slurm_gpumem.memory.trace.estimator import estimate

__all__ = ["estimate"]
