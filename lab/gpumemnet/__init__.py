"""GPUMemNet: trained as its authors do (`train`), and its form trained on our measured runs (`refit`)."""
