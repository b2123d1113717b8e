"""`python -I -m slurm_gpumem.node.sampler`."""

import sys

from slurm_gpumem.node.sampler.sampler import main

sys.exit(main(sys.argv[1:]))
