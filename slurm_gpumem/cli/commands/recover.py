"""`gpumem recover`: finish requeues that were interrupted; for administrators, by hand or from a timer."""

from __future__ import annotations

import argparse
import time
from typing import List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.terminal.say import say


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    _parser().parse_args(argv)
    from slurm_gpumem.config.paths import site_config_path
    from slurm_gpumem.config.recovery import load_recovery_config
    from slurm_gpumem.recovery.hook import PATIENCE_S, sweep
    from slurm_gpumem.recovery.requeue import become_owner
    from slurm_gpumem.slurm.client import Commands
    from slurm_gpumem.slurm.state.controller import Controller

    config = load_recovery_config(site_config_path())
    for note in config.notes:
        say(f"warning: {note}")
    slurm = Controller(Commands(config.slurm_env, config.slurm_bin))
    site = slurm.site()
    become_owner(site.state)
    done = sweep(slurm, config, site, time.monotonic() + PATIENCE_S)
    for line in done or ["nothing was left half done"]:
        print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    return Parser(
        prog="gpumem recover",
        description="Finish requeues after out of memory that were interrupted. EpilogSlurmctld does it too "
        "whenever it brings a job back; run this as SlurmUser or root where that may not be soon enough.",
    )
