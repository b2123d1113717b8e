"""Every path inside a dev cluster's state directory, named once."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple


class Layout:
    """The paths below one state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / "devcluster.json"
        """What runs here: ports, processes and the spec, as JSON."""
        self.lock = root / "lock"
        self.conf = root / "conf"
        self.slurm_conf = self.conf / "slurm.conf"
        self.site_config = self.conf / "gpumem.toml"
        self.log = root / "log"
        self.run = root / "run"
        """Sockets and pid files."""
        self.munge_socket = self.run / "munge.sock"
        self.mysql_socket = self.run / "mysql.sock"
        self.munge = root / "munge"
        """munged's private key and seed."""
        self.controller = root / "controller"
        """Slurm's StateSaveLocation."""
        self.spool = root / "spool"
        self.devices = root / "devices"
        self.ledger = root / "ledger"
        """The memory ledgers of the stand-in GPUs."""
        self.database = root / "database"
        self.programs = root / "bin"
        """Commands for people and jobs: the stand-in, and Slurm's own if it is in another tree."""
        self.library = root / "lib"
        """The stand-in's Python files, readable by all users."""
        self.hooks = root / "hooks"
        """The nodes' hooks, where the cluster has them."""
        self.records = root / "records"
        """Job records that the hooks write."""
        self.index = root / "index"
        """The index of those records."""
        self.nodes = root / "nodes"
        """What is in /run/gpumem on a real node, in a folder for each node."""

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
