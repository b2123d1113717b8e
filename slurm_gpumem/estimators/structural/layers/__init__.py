"""What each family of layers allocates, keeps for the backward pass and needs for a moment."""
