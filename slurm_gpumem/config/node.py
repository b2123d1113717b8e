"""The `[node]` table of gpumem.toml: what the site wants of its compute nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, FrozenSet, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.read import Reading, read_file, read_tables
from slurm_gpumem.config.schema import NODE, SHARING

_RUN_DIR = "/run/gpumem"
_LIMITING = {"per-user", "shared"}
"""Modes in which a job's processes are clients of MPS, which limits their memory."""
_default = NODE.default


class NodeConfig(NamedTuple):
    """How GPUs are shared on this node, and where its files are; config/schema.py describes the keys."""

    mps: str = _default("mps")
    mps_by_partition: Mapping[str, str] = _default("mps_by_partition")
    mps_by_gpu: Mapping[str, str] = _default("mps_by_gpu")
    headroom_mib: int = _default("headroom_mib")
    limits: bool = _default("limits")
    limit_key: str = _default("limit_key")
    thread_percentage: bool = _default("thread_percentage")
    driver_limit: bool = _default("driver_limit")
    spool: Path = _default("spool")
    source: str = _default("source")
    ledger: Optional[Path] = _default("ledger")
    interval_s: float = _default("interval_s")
    activity_every_s: float = _default("activity_every_s")
    record_every_s: float = _default("record_every_s")
    slurm_every_s: float = _default("slurm_every_s")
    idle_exit_s: float = _default("idle_exit_s")
    on_overrun: str = _default("on_overrun")
    on_outside_mps: str = _default("on_outside_mps")
    without_mps: str = _default("without_mps")
    user_tmpfs_mib: int = _default("user_tmpfs_mib")
    grace_s: float = _default("grace_s")
    prometheus_file: Optional[Path] = _default("prometheus_file")
    prometheus_every_s: float = _default("prometheus_every_s")
    prometheus_users: bool = _default("prometheus_users")
    mps_control: str = _default("mps_control")
    slurm_bin: Optional[Path] = _default("slurm_bin")
    slurm_env: Mapping[str, str] = _default("slurm_env")
    shard_mib: int = SHARING.default("shard_mib")
    """GPU memory of one shard, from [sharing]."""
    notes: Tuple[str, ...] = ()
    """What was wrong in the file; logged, never fatal on a node."""

    def mps_for(self, gpu_name: str, partition: str = "") -> str:
        """How a job of that partition runs on GPUs of that name."""
        # The GPU's first: what a kind of GPU cannot do, no partition can ask of it.
        for part, mode in self.mps_by_gpu.items():
            if part.lower() in gpu_name.lower():
                return mode
        return self.mps_by_partition.get(partition, self.mps)

    def mps_anywhere(self) -> FrozenSet[str]:
        """Every mode that some job may run in."""
        return frozenset((self.mps, *self.mps_by_partition.values(), *self.mps_by_gpu.values()))

    def job_mib(self, shards: int) -> int:
        """What a job with this number of shards may use of one GPU."""
        # No allowance of our own: MPS counts what NVML shows for the process, context included
        # (lab/docs/node-life.md), and that sum is what shards are requested for.
        return shards * self.shard_mib + self.headroom_mib


def run_dir(node: str = "") -> Path:
    """Where the volatile state is: jobs on this node, MPS pipes, locks. GPUMEM_RUN_DIR names another.

    %n in it is the node's name, as in slurm.conf: several nodes on one machine have a folder each.
    """
    return Path((os.environ.get("GPUMEM_RUN_DIR") or _RUN_DIR).replace("%n", node))


def nodes_are_here() -> bool:
    """Whether the folders of all nodes are on this machine."""
    return "%n" in os.environ.get("GPUMEM_RUN_DIR", "")


def load_node_config(path: str) -> NodeConfig:
    """The file's `[node]` table; what is wrong means the default and a note, never an error.

    A hook that fails over a typing error in a file would drain the node.
    """
    return _node_config(read_file(path, (NODE, SHARING)))


def site_limits_jobs() -> bool:
    """Whether the site's file says how jobs share GPUs, and in a way in which each has a memory limit."""
    reading = read_file(site_config_path(), (NODE, SHARING))
    config = _node_config(reading)
    return "mps" in reading.table(NODE) and config.limits and config.mps_anywhere() <= _LIMITING


def node_config_from(tables: Mapping[str, Any], where: str) -> NodeConfig:
    """The same of tables that are already parsed."""
    return _node_config(read_tables(tables, where, (NODE, SHARING)))


def _node_config(reading: Reading) -> NodeConfig:
    shard = {key: value for key, value in reading.table(SHARING).items() if key == "shard_mib"}
    return NodeConfig(**reading.table(NODE), **shard, notes=reading.notes)
