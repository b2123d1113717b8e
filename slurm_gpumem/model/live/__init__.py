"""Our own summary from a live model: trace its training on meta tensors, without a GPU. Needs torch."""

from slurm_gpumem.model.live.summarize import summarize

__all__ = ["summarize"]
