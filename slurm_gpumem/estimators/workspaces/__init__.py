"""Temporary memory of kernels: cuDNN's workspaces and the buffers of long sums."""
