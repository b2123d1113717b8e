"""A summary of our own from a live model: its training traced on meta tensors, without a GPU. Needs torch."""
