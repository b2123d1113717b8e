"""A site made of its configuration files: real daemons are asked what they make of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Optional, Sequence

from slurm_gpumem.devcluster import trial
from slurm_gpumem.devcluster.sandbox import Configuration
from slurm_gpumem.devcluster.trial import Trial
from slurm_gpumem.site.nodes import memory_in_table
from slurm_gpumem.site.setup.setup import Proposal, SetupOptions, propose
from slurm_gpumem.site.setup.trial_run import Verdict, try_proposal
from slurm_gpumem.site.snapshot import INCLUDES_FROM_CONF, Snapshot
from slurm_gpumem.slurm.conf_file import Where
from slurm_gpumem.slurm.config_show import show_config, version_of
from slurm_gpumem.slurm.state.nodes import ask_nodes, ask_partitions

_ROOT = os.environ.get("GPUMEM_TEST_SLURM_ROOT")
SLURM_ROOT: Optional[Path] = Path(_ROOT) if _ROOT else None
HEAD = """\
ClusterName=site
SlurmctldHost=controller.example
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=1
"""
GPUS = "Name=gpu Type=a100 File=/dev/nvidia[0-3]\n"


class _Client:
    """Slurm's commands in a trial."""

    def __init__(self, running: Trial) -> None:
        self._running = running

    def run(self, argv: Sequence[str], *, timeout_s: float = 3.0) -> str:
        return self._running.run(argv).stdout


def where(folder: str = "") -> Where:
    """How the Slurm under test finds included files."""
    return Where(folder, beside=trial.installed_version(SLURM_ROOT) < INCLUDES_FROM_CONF)


def snapshot_of(files: Mapping[str, str], nodes: Sequence[str], folder: Optional[Path] = None) -> Snapshot:
    """What a cluster with these files says of itself."""
    conf = {name: text for name, text in files.items() if not name.endswith(".lua")}
    found = where(str(folder or ""))
    with trial.started(Configuration(conf, found), nodes, SLURM_ROOT) as running:
        client = _Client(running)
        config = show_config(client)
        return Snapshot(
            version=version_of(config),
            config=config,
            nodes=ask_nodes(client),
            partitions=ask_partitions(client),
            folder=folder,
            files=files,
        )


def proposed(now: Snapshot, options: Optional[SetupOptions] = None) -> Proposal:
    """What setup proposes for it."""
    return propose(options or SetupOptions(slurm_root=SLURM_ROOT), now, memory_in_table)


def tried(proposal: Proposal, now: Snapshot) -> Verdict:
    """What came of the proposal's trial."""
    return try_proposal(proposal, now, SLURM_ROOT)


def after(proposal: Proposal, now: Snapshot) -> Configuration:
    """The site's configuration with the proposal in it."""
    files = {**now.files, **proposal.files}
    return Configuration({name: text for name, text in files.items() if name.endswith(".conf")}, now.where)
