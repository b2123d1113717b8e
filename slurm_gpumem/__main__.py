"""`python -m slurm_gpumem` is `gpumem`."""

import sys

from slurm_gpumem.cli.gpumem import main

# With arguments it ends as Python programs do: profilers write their figures then.
sys.exit(main(sys.argv[1:]))
