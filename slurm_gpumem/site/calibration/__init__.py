"""Measure this node's GPU: the CUDA context, and the rates from which utilization is computed."""
