"""GPUMemNet trained again on our measured runs, for comparison."""
