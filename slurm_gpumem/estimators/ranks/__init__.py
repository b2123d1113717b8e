"""One rank's memory in training on several GPUs, computed from the trace of one process.

Each strategy is a change of the traced steps: what a rank keeps of parameters, gradients and states, and the
buffers that it communicates through. `rank_trace` gives the changed trace, to be replayed like any other. The
rules are read in the sources of PyTorch and DeepSpeed; what they give is computed, not measured.
"""

from slurm_gpumem.estimators.ranks.rank_trace import rank_trace

__all__ = ["rank_trace"]
