"""Slurm's configuration: its files, and what the running controller has of them."""
