"""The estimator `trace`: our own summaries' allocations, replayed through the caching allocator."""

from slurm_gpumem.estimators.traced.estimator import estimate

__all__ = ["estimate"]
