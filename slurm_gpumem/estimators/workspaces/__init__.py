"""Memory that kernels take for a moment: cuDNN's workspaces and the buffers of long sums."""
