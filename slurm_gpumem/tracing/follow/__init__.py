"""Where a script stands, and what of its loops, epochs, evaluations and generation is left out."""
