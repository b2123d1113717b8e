"""Every path inside a dev cluster's state directory, named once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Tuple


@dataclass(frozen=True)
class Layout:
    """The paths below one state directory."""

    root: Path

    @property
    def state_file(self) -> Path:
        """What runs here: ports, processes and the spec, as JSON."""
        return self.root / "devcluster.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def conf(self) -> Path:
        return self.root / "conf"

    @property
    def slurm_conf(self) -> Path:
        return self.conf / "slurm.conf"

    @property
    def site_config(self) -> Path:
        return self.conf / "gpumem.toml"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.root / "run"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def mysql_socket(self) -> Path:
        return self.run / "mysql.sock"

    @property
    def munge(self) -> Path:
        """munged's private key and seed."""
        return self.root / "munge"

    @property
    def controller(self) -> Path:
        """Slurm's StateSaveLocation."""
        return self.root / "controller"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def devices(self) -> Path:
        return self.root / "devices"

    @property
    def ledger(self) -> Path:
        """The memory ledgers of the stand-in GPUs."""
        return self.root / "ledger"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def programs(self) -> Path:
        """Commands for people and jobs: the stand-in, and Slurm's own if it is in another tree."""
        return self.root / "bin"

    @property
    def library(self) -> Path:
        """The stand-in's Python files, readable by all users."""
        return self.root / "lib"

    @property
    def hooks(self) -> Path:
        """The nodes' hooks, where the cluster has them."""
        return self.root / "hooks"

    @property
    def records(self) -> Path:
        """Job records that the hooks write."""
        return self.root / "records"

    @property
    def index(self) -> Path:
        """The index of those records."""
        return self.root / "index"

    @property
    def nodes(self) -> Path:
        """What is in /run/gpumem on a real node, in a folder for each node."""
        return self.root / "nodes"

    def private_folders(self) -> Tuple[Path, ...]:
        """Directories that only the cluster's owner may enter."""
        return (self.munge, self.controller, self.database, self.index)

    def public_folders(self) -> Tuple[Path, ...]:
        """Directories that the users of jobs must be able to enter."""
        return (
            self.conf,
            self.log,
            self.run,
            self.spool,
            self.devices,
            self.ledger,
            self.programs,
            self.library,
            self.hooks,
            self.records,
            self.nodes,
        )
