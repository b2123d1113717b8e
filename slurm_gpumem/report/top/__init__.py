"""What runs now: one's own jobs, or all of the cluster, from Slurm's queue and the nodes' live files."""
