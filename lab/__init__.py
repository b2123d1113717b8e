"""Ground truth from a real GPU: what is trained, how it is measured, where it is kept."""
