"""The types of GPUs and of MIG instances, and the CUDA context that each takes."""
