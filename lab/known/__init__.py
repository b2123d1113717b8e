"""Known models: traced where their libraries are, and packed into the files that ship."""

BATCH = 16
"""The batch size at which models are traced; sizes are polynomials of it."""
