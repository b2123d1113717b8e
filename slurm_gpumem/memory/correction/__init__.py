"""The estimator `corrected`: the structural estimate with a learned correction and a bound that holds."""

from slurm_gpumem.memory.correction.estimator import estimate

__all__ = ["estimate"]
