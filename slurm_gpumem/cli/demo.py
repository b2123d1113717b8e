"""`make demo`: `python -m slurm_gpumem.cli.demo`."""

from __future__ import annotations

import sys

from slurm_gpumem.cli.run import run_command
from slurm_gpumem.devcluster.demo import demo

if __name__ == "__main__":
    sys.exit(run_command(demo))
