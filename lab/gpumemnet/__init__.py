"""GPUMemNet, trained as its authors do."""
