"""What runs on a compute node: hooks, MPS per user and GPU, memory limits, metrics, the sampler."""
