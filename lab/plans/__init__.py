"""Configurations of what is collected: ranges, counts, seeds."""
