"""What Slurm knows: jobs, nodes, limits, placement, accounting; asked by its commands."""
