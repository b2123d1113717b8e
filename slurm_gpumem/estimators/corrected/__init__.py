"""The estimator `corrected`: the structural estimate with a learned correction and a bound that holds."""

from slurm_gpumem.estimators.corrected.estimator import estimate

__all__ = ["estimate"]
