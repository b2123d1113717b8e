"""What a GPU would do that meta tensors do not: kernels, workspaces, attention, autocast."""
