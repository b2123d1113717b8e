"""Training runs measured on a GPU."""
