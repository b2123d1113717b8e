"""The closed job records of all nodes, gathered, joined with Slurm's accounting, and what they show."""
