"""`python -m slurm_gpumem` is `gpumem`."""

import sys

from slurm_gpumem.cli.gpumem import main

sys.exit(main())
