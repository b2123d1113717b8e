"""The `[node]` table of gpumem.toml: what the site wants of its compute nodes."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any, FrozenSet, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.paths import site_config_path, slurm_env
from slurm_gpumem.config.read import Reading, read_file, read_tables
from slurm_gpumem.config.schema import DEVCLUSTER, NODE, SHARING

_RUN_DIR = "/run/gpumem"
_LIMITING = {"per-user", "shared"}
"""Modes in which a job's processes are clients of MPS, which limits their memory."""
_default, _constant = NODE.default, DEVCLUSTER.default
_READ = (NODE, SHARING, DEVCLUSTER)


class NodeConfig(NamedTuple):
    """How GPUs are shared on this node, and where its files are; config/schema.py describes the keys."""

    mps: str = _default("mps")
    mps_by_partition: Mapping[str, str] = _default("mps_by_partition")
    headroom_mib: int = _default("headroom_mib")
    driver_limit: bool = _default("driver_limit")
    spool: Path = _default("spool")
    source: str = _default("source")
    on_overrun: str = _default("on_overrun")
    on_idle: str = _default("on_idle")
    idle_after: Mapping[str, int] = _default("idle_after")
    idle_except: Mapping[str, Tuple[str, ...]] = _default("idle_except")
    prometheus_file: Optional[Path] = _default("prometheus_file")
    prometheus_users: bool = _default("prometheus_users")
    slurm_bin: Optional[Path] = _default("slurm_bin")
    slurm_env: Mapping[str, str] = MappingProxyType({})
    """SLURM_CONF of those commands, where a slurm.conf is beside the file and nothing else names one."""
    ledger: Optional[Path] = _constant("ledger")
    mps_control: str = _constant("mps_control")
    interval_s: float = _constant("interval_s")
    activity_every_s: float = _constant("activity_every_s")
    record_every_s: float = _constant("record_every_s")
    slurm_every_s: float = _constant("slurm_every_s")
    idle_exit_s: float = _constant("idle_exit_s")
    grace_s: float = _constant("grace_s")
    pilot_steady_s: float = _constant("pilot_steady_s")
    shard_mib: int = SHARING.default("shard_mib")
    """GPU memory of one shard, from [sharing] ..."""
    pilot_wait: int = SHARING.default("pilot_wait")
    """... and how long an array waits for its first task."""
    notes: Tuple[str, ...] = ()
    """What was wrong in the file; logged, never fatal on a node."""

    def mps_for(self, partition: str = "") -> str:
        """How a job of that partition runs."""
        return self.mps_by_partition.get(partition, self.mps)

    def mps_anywhere(self) -> FrozenSet[str]:
        """Every mode that some job may run in."""
        return frozenset((self.mps, *self.mps_by_partition.values()))

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
    return _node_config(read_file(path, _READ))


def site_limits_jobs() -> bool:
    """Whether the site's file says how jobs share GPUs, and in a way in which each has a memory limit."""
    reading = read_file(site_config_path(), _READ)
    config = _node_config(reading)
    return "mps" in reading.table(NODE) and config.mps_anywhere() <= _LIMITING


def site_shares() -> bool:
    """Whether the site's file says how jobs share GPUs: then the hooks, TaskProlog among them, are there."""
    reading = read_file(site_config_path(), _READ)
    return "mps" in reading.table(NODE) and "off" not in _node_config(reading).mps_anywhere()


def node_config_from(tables: Mapping[str, Any], where: str) -> NodeConfig:
    """The same of tables that are already parsed."""
    return _node_config(read_tables(tables, where, _READ))


def _node_config(reading: Reading) -> NodeConfig:
    sharing = reading.table(SHARING)
    shard = {key: sharing[key] for key in ("shard_mib", "pilot_wait") if key in sharing}
    constants = {key: value for key, value in reading.table(DEVCLUSTER).items() if key in NodeConfig._fields}
    env = slurm_env(reading.file)
    return NodeConfig(**reading.table(NODE), **constants, **shard, slurm_env=env, notes=reading.notes)
