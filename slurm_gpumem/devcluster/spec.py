"""The description of a dev cluster: its nodes, its GPUs and how Slurm shares them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.xdg import state_path

MIB_PER_SHARD = 1024
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
UNFIT_IN_PATHS = re.compile(r"[\s#,'\"%\[\]]")
"""What Slurm's files cannot have in a path."""
_SOCKET_PATH_LIMIT = 107
"""The kernel's limit on the path of a unix socket."""
_LONGEST_SOCKET = "run/munge.sock.2"


class Undivided(NamedTuple):
    """GPUs or MIG instances of one type that have no shares."""

    gpu_type: str
    """Slurm's: "1g.18gb", "v100"."""
    number: int
    memory_mib: int = 16 * 1024
    """Of each."""
    profile: str = ""
    """Of MIG instances."""
    gpu: str = ""
    """What they are instances of, where the type says it."""


@dataclass(frozen=True)
class NodeSpec:
    """One simulated compute node."""

    name: str
    gpus: int = 4
    gpu_type: str = "a100"
    gpu_memory_mib: int = 40 * 1024
    cpus: int = 64
    memory_mib: int = 512_000
    instances: Tuple[Undivided, ...] = ()
    """MIG instances, or GPUs that are not shared, beside the shared GPUs."""

    @property
    def devices(self) -> int:
        """Device files that stand for its GPUs and instances."""
        return self.gpus + sum(kind.number for kind in self.instances)


def default_nodes(
    count: int = 2, gpus: int = 4, gpu_type: str = "a100", gpu_memory_mib: int = 40 * 1024
) -> Tuple[NodeSpec, ...]:
    """`count` identical nodes named n1, n2 ..."""
    return tuple(
        NodeSpec(f"n{index + 1}", gpus=gpus, gpu_type=gpu_type, gpu_memory_mib=gpu_memory_mib)
        for index in range(count)
    )


def default_state() -> Path:
    """The default state directory: root's must be reachable by the users whose jobs run there."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpumem-devcluster")
    return Path(state_path("gpumem-devcluster"))


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that `up` needs to know; validated on creation."""

    nodes: Tuple[NodeSpec, ...] = field(default_factory=default_nodes)
    gres: str = "shard"
    """How GPUs are shared: "shard" or "mps"; one per cluster, as Slurm requires."""
    mps_per_gpu: int = 100
    """The site's number of gres/mps units per GPU."""
    accounting: bool = False
    job_submit_lua: Optional[str] = None
    """A job_submit.lua; it and the .lua files next to it are copied next to slurm.conf."""
    cli_filter: bool = False
    """With the filter of plain sbatch, srun and salloc."""
    hooks: bool = False
    """With the nodes' hooks: jobs on stand-in GPUs are measured, and `gpumem report` and `top` show them."""
    extra_conf: Tuple[str, ...] = ()
    """Lines for slurm.conf; a key that is already set is replaced, not repeated."""
    whole_nodes: Tuple[str, ...] = ()
    """Nodes that belong to partition `whole` only; if empty, both partitions span all nodes."""
    cred_expire_s: Optional[int] = None
    """Slurm's 120 s by default; a requeued job waits that long, which is too long for tests."""
    state: Path = field(default_factory=default_state)
    slurm_root: Optional[Path] = None
    """A tree with another Slurm than the system's."""

    def __post_init__(self) -> None:
        _check_nodes(self)
        if self.gres not in ("shard", "mps"):
            raise UsageError(f'gres is {self.gres!r}; a cluster shares its GPUs by "shard" or by "mps"')
        if self.mps_per_gpu < 1:
            raise UsageError(f"mps_per_gpu is {self.mps_per_gpu}; a GPU has at least 1")
        for line in self.extra_conf:
            if "=" not in line or "\n" in line:
                raise UsageError(f"{line!r} is not one line Key=value of slurm.conf")
        if not self.state.is_absolute():
            raise UsageError(f"state directory {str(self.state)!r} must be an absolute path")
        if UNFIT_IN_PATHS.search(str(self.state)):
            raise UsageError(
                f"state directory {str(self.state)!r}: Slurm's files allow no blanks, quotes, #, %, commas "
                "or brackets in a path; choose another with --state"
            )
        longest = self.state / _LONGEST_SOCKET
        if len(os.fsencode(longest)) > _SOCKET_PATH_LIMIT:
            raise UsageError(
                f"state directory {str(self.state)!r} is too long for the path of a socket "
                f"({_SOCKET_PATH_LIMIT} bytes); choose a shorter one with --state"
            )

    def shared_per_gpu(self, node: NodeSpec) -> int:
        """Shards (or units of gres/mps) of one of the node's GPUs."""
        return node.gpu_memory_mib // MIB_PER_SHARD if self.gres == "shard" else self.mps_per_gpu


def _check_nodes(spec: ClusterSpec) -> None:
    names = [node.name for node in spec.nodes]
    if not names:
        raise UsageError("a cluster needs at least one node")
    if len(set(names)) != len(names):
        raise UsageError(f"node names must differ: {', '.join(names)}")
    for node in spec.nodes:
        if not _NAME.fullmatch(node.name) or not _TYPE.fullmatch(node.gpu_type):
            raise UsageError(
                f"node {node.name!r} with GPU type {node.gpu_type!r}: names are letters, digits, _ and -"
            )
        for kind in node.instances:
            if not _TYPE.fullmatch(kind.gpu_type) or kind.number < 1:
                raise UsageError(
                    f"node {node.name}: {kind.number} instances of type {kind.gpu_type!r} cannot be had"
                )
        if node.gpus < 0 or node.cpus < 1 or node.memory_mib < 1:
            raise UsageError(f"node {node.name}: counts of GPUs, CPUs and memory must be positive")
        if node.gpus and node.gpu_memory_mib < MIB_PER_SHARD:
            raise UsageError(f"node {node.name}: a GPU has at least 1 GiB, not {node.gpu_memory_mib} MiB")
    strange = sorted(set(spec.whole_nodes) - set(names))
    if strange:
        raise UsageError(f"whole_nodes names {', '.join(strange)}, which the cluster does not have")
    if spec.whole_nodes and set(spec.whole_nodes) == set(names):
        raise UsageError("whole_nodes names every node; partition gpu would be empty")


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
        self.hooks = self.conf / "gpumem"
        """The nodes' hooks, where the cluster has them, and their settings, which the filter reads too."""
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
