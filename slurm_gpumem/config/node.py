"""The `[node]` table of gpumem.toml: what the site wants of its compute nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from slurm_gpumem.errors import ConfigError

DEFAULT_SITE_CONFIG = "/etc/slurm/gpumem.toml"
DEFAULT_RUN_DIR = "/run/gpumem"
MODES = ("mps", "timeslice", "off")
ACTIONS = ("log", "warn", "cancel")
SOURCES = ("auto", "dcgm", "gpm", "nvml", "standin")
LIMIT_KEYS = ("index", "uuid")
END_LINES = ("off", "ask", "all")


@dataclass(frozen=True)
class NodeConfig:
    """How GPUs are shared on this node, and where its files are."""

    mode: str = "mps"
    """"mps", "timeslice" (share without MPS: no limits) or "off" (hooks do nothing)."""
    mode_by_gpu: Mapping[str, str] = field(default_factory=dict)
    """Other modes for GPUs whose name contains the key, e.g. {"T4": "timeslice"}."""
    shard_mib: int = 1024
    headroom_mib: int = 0
    """Added to every job's limit; uncounted memory of the GPU must cover it.

    0 kills nobody wrongly: MPS counts what NVML shows for the process, context included
    (docs/admin/node-life.md), and that sum is what shards are asked for.
    """
    limits: bool = True
    """Set a memory limit for MPS clients; without it MPS shares but does not fence."""
    limit_key: str = "uuid"
    """How the limit names the GPU: "uuid" or "index" (0: a daemon pinned to one GPU renumbers it)."""
    thread_percentage: bool = False
    """Also set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE from the job's part of the GPU."""
    spool: Path = Path("/var/spool/gpumem")
    """Where job records go; may be on a shared file system."""
    source: str = "auto"
    ledger: Optional[Path] = None
    """The stand-in GPUs' folder; only for source "standin"."""
    interval_s: float = 1.0
    activity_every_s: float = 5.0
    """How often activity, power and energy are read; memory is looked at every `interval_s`."""
    record_every_s: float = 30.0
    slurm_every_s: float = 15.0
    idle_exit_s: float = 30.0
    """The sampler ends when no shared job has been here for so long."""
    on_overrun: str = "log"
    """"log", "warn" (a line on the job's stderr) or "cancel" for a job above its shards."""
    on_unfenced: str = "log"
    """The same for a GPU process of a shared job that is no MPS client."""
    grace_s: float = 10.0
    """How long a job may be above its shards or outside MPS before the action is taken."""
    end_line: str = "ask"
    """Which jobs get a line on what they used at the end of their output: "off", "ask" (who asked), "all"."""
    prometheus_file: Optional[Path] = None
    """Where the sampler writes the node's metrics for node_exporter's textfile collector."""
    prometheus_every_s: float = 15.0
    prometheus_users: bool = True
    """Name the jobs' users in that file, which everybody who can ask Prometheus reads."""
    mps_control: str = "/usr/bin/nvidia-cuda-mps-control"
    slurm_bin: Optional[Path] = None
    """Folder of squeue, scontrol and scancel when it is not on the PATH."""
    slurm_env: Mapping[str, str] = field(default_factory=dict)
    """Environment for those commands, e.g. {SLURM_CONF = "/etc/slurm/slurm.conf"}."""
    notes: Tuple[str, ...] = ()
    """What was wrong in the file; logged, never fatal on a node."""

    def mode_for(self, gpu_name: str) -> str:
        """The mode of GPUs of that name."""
        for part, mode in self.mode_by_gpu.items():
            if part.lower() in gpu_name.lower():
                return mode
        return self.mode

    def wants_end_line(self, asked: bool) -> bool:
        """Whether a job gets one that did, or did not, ask for it."""
        return self.end_line == "all" or (self.end_line == "ask" and asked)

    def job_mib(self, shards: int) -> int:
        """What a job with so many shards may use of one GPU."""
        return shards * self.shard_mib + self.headroom_mib


_CHOICES = {
    "mode": MODES,
    "source": SOURCES,
    "on_overrun": ACTIONS,
    "on_unfenced": ACTIONS,
    "limit_key": LIMIT_KEYS,
    "end_line": END_LINES,
}
_PATHS = ("spool", "ledger", "slurm_bin", "prometheus_file")
_NUMBERS = (
    "interval_s", "activity_every_s", "record_every_s", "slurm_every_s", "idle_exit_s", "grace_s",
    "prometheus_every_s",
)  # fmt: skip


def run_dir() -> Path:
    """Where the volatile state is: jobs on this node, MPS pipes, locks. GPUMEM_RUN_DIR names another."""
    return Path(os.environ.get("GPUMEM_RUN_DIR") or DEFAULT_RUN_DIR)


def site_config_path() -> Path:
    """The site's file; GPUMEM_SITE_CONFIG names another."""
    return Path(os.environ.get("GPUMEM_SITE_CONFIG") or DEFAULT_SITE_CONFIG)


def load_node_config(path: Path) -> NodeConfig:
    """The file's `[node]` table; a missing or broken file means the defaults and a note, never an error.

    A hook that fails over a typing error in a file would drain the node.
    """
    if not path.exists():
        return NodeConfig()
    from slurm_gpumem.toml_file import load_toml

    try:
        tables = load_toml(path)
    except ConfigError as error:
        return NodeConfig(notes=(str(error),))
    return node_config_from(tables, str(path))


def node_config_from(tables: Mapping[str, Any], where: str) -> NodeConfig:
    """The `[node]` table, value by value: what is wrong is left at its default and noted."""
    notes = []
    values: Dict[str, Any] = {}
    sharing = tables.get("sharing")
    if isinstance(sharing, dict) and isinstance(sharing.get("shard_mib"), int) and sharing["shard_mib"] > 0:
        values["shard_mib"] = sharing["shard_mib"]
    table = tables.get("node", {})
    if not isinstance(table, dict):
        return NodeConfig(notes=(f"{where}: [node] is not a table",))
    for key, value in table.items():
        name = key.replace("-", "_")
        try:
            values[name] = _checked(name, value)
        except ValueError as error:
            notes.append(f"{where}: [node] {key}: {error}; the default is used")
    return NodeConfig(**values, notes=tuple(notes))


def _checked(name: str, value: Any) -> Any:
    if name not in NodeConfig.__dataclass_fields__ or name in ("notes", "shard_mib"):
        raise ValueError("unknown key")
    if name in _CHOICES:
        return _one_of(value, _CHOICES[name])
    if name in _PATHS:
        if not isinstance(value, str) or not os.path.isabs(value):
            raise ValueError(f"{value!r} is not an absolute path")
        return Path(value)
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.05 <= value <= 86_400:
            raise ValueError(f"{value!r} is not a number of seconds")
        return float(value)
    if name == "mode_by_gpu":
        return {str(gpu): _one_of(mode, MODES) for gpu, mode in _table(value).items()}
    if name == "slurm_env":
        return {str(key): str(text) for key, text in _table(value).items()}
    if name == "mps_control":
        if not isinstance(value, str) or not os.path.isabs(value):
            raise ValueError(f"{value!r} is not an absolute path")
        return value
    if name == "headroom_mib":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{value!r} is not a number of MiB")
        return value
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _one_of(value: Any, choices: Tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return str(value)


def _table(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table")
    return value
