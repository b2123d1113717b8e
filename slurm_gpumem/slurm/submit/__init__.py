"""What somebody submits: scripts, directives, options, and the call of sbatch."""
