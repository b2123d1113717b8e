"""This node's GPU measured: the CUDA context and the rates that utilization is computed from."""
