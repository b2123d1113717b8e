"""`make demo`: `python -m slurm_gpumem.cli.demo`."""

from __future__ import annotations

import sys

from slurm_gpumem.devcluster.demo import demo
from slurm_gpumem.terminal.say import run_command

if __name__ == "__main__":
    sys.exit(run_command(demo))
