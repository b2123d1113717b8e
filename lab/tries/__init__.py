"""What jobs under `torch.backends.cudnn.benchmark` need when their memory is limited."""
