"""One frozen picture of a cluster's configuration, gathered once: what setup and doctor look at."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from slurm_gpumem.accounting.faults import Faults
from slurm_gpumem.accounting.store import offsets_and_faults
from slurm_gpumem.accounting.sums import Offset
from slurm_gpumem.config.paths import SITE_VARIABLE, site_config_path
from slurm_gpumem.config.read import Problem, read_file
from slurm_gpumem.config.schema import SECTIONS, SHARING
from slurm_gpumem.data import FILTER_FILES, HOOKS_CONF, LUA_FILES, hooks_conf
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import END_PREFIX
from slurm_gpumem.site.doctor.hosts import HostReport
from slurm_gpumem.site.doctor.lua_report import LuaReport, try_filter, try_lua
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient, Version
from slurm_gpumem.slurm.conf_file import (
    Where,
    attributes_of,
    lines_of,
    partition_nodes,
    read_from_disk,
    read_tree,
)
from slurm_gpumem.slurm.config_show import show_config, version_of
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.state import queue
from slurm_gpumem.slurm.state.nodes import Record, ask_nodes, ask_partitions
from slurm_gpumem.slurm.state.sacct import Limit, ask_limits

FILES = (
    *("slurm.conf", "gres.conf", "job_submit.lua", *LUA_FILES, "gpumem_site.lua", "gpumem.toml"),
    *(*FILTER_FILES, HOOKS_CONF),
)
INCLUDES_FROM_CONF: Version = (23, 2, 0)
"""Measured: relative names in included files start at their own folder on 22.05, at slurm.conf's on 24.11."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Heartbeat:
    """When EpilogSlurmctld ran and when it should have."""

    ran: Optional[float] = None
    """Unix time of its last run; None when it never ran."""
    due: Optional[queue.EndedJob] = None
    """The job that ended last, for which it should have run; None when none has ended."""
    configured: bool = True
    """Whether hooks.conf has state_dir, where it leaves its sign."""


@dataclass(frozen=True)
class Snapshot:
    """What the cluster says of itself, as far as sharing is concerned."""

    version: Version
    config: Record
    nodes: Tuple[Record, ...] = ()
    partitions: Tuple[Record, ...] = ()
    limits: Tuple[Limit, ...] = ()
    jobs: Tuple[queue.QueuedJob, ...] = ()
    folder: Optional[Path] = None
    """Where slurm.conf and job_submit.lua are, when that is on this host."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of those of FILES that can be read here, and of what slurm.conf and gres.conf include."""
    left_held: Tuple[str, ...] = ()
    """Our jobs that were requeued after out of memory and are still held."""
    lua: Optional[LuaReport] = None
    """What came of loading the Lua files; None without them or without an interpreter."""
    filter: Optional[Mapping[str, LuaReport]] = None
    """Of the filter's files that are here, by interpreter; None without one."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The [sharing] table of gpumem.toml."""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """All tables of gpumem.toml: what is given there and right."""
    site_file: str = ""
    """The gpumem.toml that was read; "" without one."""
    submits_by: str = ""
    """The gpumem.toml that gpusbatch reads in this environment."""
    problems: Tuple[Problem, ...] = ()
    """What is wrong in gpumem.toml."""
    unread: Tuple[str, ...] = ()
    """What could not be asked, and why."""
    here: Optional[HostReport] = None
    """What this host has of our hooks and files; None when nobody looked."""
    is_controller: bool = False
    """Whether slurmctld runs on this host."""
    hooks_unseen: Tuple[str, ...] = ()
    """Hooks of the nodes that are not on this host."""
    offsets: Tuple[Offset, ...] = ()
    """How far estimates are off, where root's index of records can be read."""
    faults: Optional[Faults] = None
    """CUDA faults of shared jobs, by the same index."""
    heartbeat: Optional[Heartbeat] = None
    """What is known of EpilogSlurmctld's last run; None where it is not ours, or not to be seen here."""

    @property
    def where(self) -> Where:
        """How this Slurm finds included files."""
        return Where(str(self.folder or ""), beside=self.version < INCLUDES_FROM_CONF)

    @property
    def cli_filters(self) -> Tuple[str, ...]:
        """Slurm's submission filters. Its commands read this host's slurm.conf, so that counts."""
        tree = read_tree("slurm.conf", {"slurm.conf": "", **self.files}, self.where)
        here = [statement.value("clifilterplugins") for statement in tree.statements]
        named = [value for value in here if value is not None]
        text = named[-1] if named else self.config.get("CliFilterPlugins", "")
        words = [word.strip().replace("cli_filter/", "") for word in text.split(",")]
        return tuple(word for word in words if word not in ("", "(null)", "none"))

    @property
    def version_text(self) -> str:
        """The version as Slurm prints it: 22.05.8."""
        return f"{self.version[0]}.{self.version[1]:02d}.{self.version[2]}"

    def shared_nodes(self) -> Tuple[Record, ...]:
        """The nodes with shards or mps units."""
        return tuple(node for node in self.nodes if re.search(r"\b(shard|mps):", node.get("Gres", "")))


def gather(client: SlurmClient = COMMANDS) -> Snapshot:
    """Ask the running cluster; SlurmError when its controller does not answer."""
    config = show_config(client)
    unread: List[str] = []

    def tried(what: str, ask: Callable[[], Tuple[_T, ...]]) -> Tuple[_T, ...]:
        try:
            return ask()
        except SlurmError as error:
            unread.append(f"{what}: {error}")
            return ()

    has_database = "slurmdbd" in config.get("AccountingStorageType", "")
    folder, files = read_files(config.get("SLURM_CONF"), version_of(config))
    site_file = os.environ.get(SITE_VARIABLE) or (str(folder / "gpumem.toml") if folder else "")
    site = read_file(site_file, SECTIONS)
    offsets, faults = offsets_and_faults()
    lua = try_lua(folder) if folder and "job_submit.lua" in files else None
    return Snapshot(
        version=version_of(config),
        config=config,
        nodes=ask_nodes(client),
        partitions=ask_partitions(client),
        limits=tried("limits", lambda: ask_limits(client)) if has_database else (),
        jobs=tried("jobs", lambda: queue.queued(client)),
        folder=folder,
        files=files,
        left_held=tried("held jobs", lambda: _left_held(client)),
        lua=lua,
        filter=try_filter(folder, [name for name in FILTER_FILES if name in files]) if folder else None,
        policy=site.table(SHARING),
        tables=site.values,
        site_file=site_file if os.path.exists(site_file) else "",
        problems=site.problems,
        unread=tuple(unread),
        submits_by=site_config_path(),
        offsets=tuple(offsets),
        faults=faults,
    )


def read_files(
    slurm_conf: Optional[str], version: Version = INCLUDES_FROM_CONF
) -> Tuple[Optional[Path], Dict[str, str]]:
    """The folder of slurm.conf, when it is on this host, and the files in it that can be read."""
    folder = Path(slurm_conf).parent if slurm_conf else None
    if folder is None or not folder.is_dir():
        return None, {}
    texts: Dict[str, str] = {}
    where = Where(str(folder), beside=version < INCLUDES_FROM_CONF)
    for name in ("slurm.conf", "gres.conf"):
        texts.update(read_from_disk(name, where))
    for name in FILES[2:]:
        try:
            path = hooks_conf(folder) if name == HOOKS_CONF else folder / name
            texts[name] = Path(path).read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            # Not there, or not for us: the checks that need it say so.
            continue
    return folder, texts


def _left_held(client: SlurmClient) -> Tuple[str, ...]:
    held = queue.requeued_held(client)
    ours = set(queue.with_comment(client, "PENDING", END_PREFIX)) if held else set()
    return tuple(name for name in held if name in ours)


# Nodes that slurm.conf has and Slurm does not show: State=CLOUD while they are off, and State=FUTURE.

_NOT_SHOWN = "not shown"


def with_hidden_nodes(now: Snapshot) -> Snapshot:
    """The picture with those of them that have GPUs, as slurm.conf describes them."""
    if "slurm.conf" not in now.files:
        return now
    statements = read_tree("slurm.conf", now.files, now.where).statements
    shown = {node["NodeName"] for node in now.nodes}
    partitions: Dict[str, List[str]] = {}
    for partition, names in partition_nodes(statements).items():
        for name in names:
            partitions.setdefault(name, []).append(partition)
    hidden = [
        _record(name, about, partitions.get(name, []))
        for name, about in attributes_of(lines_of(statements, "nodename")).items()
        if name not in shown and "gpu" in about.get("gres", "")
    ]
    return replace(now, nodes=(*now.nodes, *hidden))


def cloud_notes(now: Snapshot) -> List[str]:
    """What applies to nodes that come and go, where they have GPUs."""
    cloud, later = [], []
    for node in now.nodes:
        state = node.get("State", "")
        if "gpu" in node.get("Gres", "") and "CLOUD" in state:
            cloud.append(node["NodeName"])
        elif _NOT_SHOWN in state:
            later.append(node["NodeName"])
    notes = []
    if cloud:
        notes.append(
            f"{fold_names(cloud)}: State=CLOUD; they get shares like the others. Their image needs the new "
            "slurm.conf and gres.conf (unless it is configless) and the hooks, and those that run now must "
            "be powered down and up again"
        )
    if later:
        notes.append(
            f"{fold_names(later)}: in slurm.conf, but Slurm does not show them (State=FUTURE); they get "
            "shares like the others"
        )
    return notes


def _record(name: str, about: Mapping[str, str], partitions: List[str]) -> Dict[str, str]:
    """What `scontrol show node` would say of it, as far as setup reads it."""
    return {
        "NodeName": name,
        "Gres": about.get("gres", ""),
        "State": f"{about.get('state', '').upper()} ({_NOT_SHOWN})",
        "Partitions": ",".join(partitions),
        "CPUTot": str(_cpus(about)),
        "RealMemory": about.get("realmemory", "1"),
        "MemSpecLimit": about.get("memspeclimit", "0"),
        "AvailableFeatures": about.get("features") or about.get("feature", ""),
    }


def _cpus(about: Mapping[str, str]) -> int:
    def number(key: str) -> int:
        text = about.get(key, "")
        return int(text) if text.isascii() and text.isdigit() else 1

    if "cpus" in about or "procs" in about:
        return number("cpus") * number("procs")
    sockets = number("sockets") * number("boards") * number("socketsperboard")
    return sockets * number("corespersocket") * number("threadspercore")
