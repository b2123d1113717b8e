"""A summary from a live model: its training is traced on meta tensors, without a GPU. Needs torch."""
