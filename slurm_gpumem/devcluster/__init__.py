"""A real Slurm on one host, for the demo, the tests and a site's dry runs."""
