"""From an estimate and the site's policy to what is asked of Slurm."""
