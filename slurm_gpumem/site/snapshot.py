"""One frozen picture of a cluster's configuration, gathered once: what setup and doctor look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from slurm_gpumem.errors import ConfigError, SlurmError
from slurm_gpumem.formats.comment import END_PREFIX, REQUEUED_HELD
from slurm_gpumem.site.lua_report import LuaReport, try_lua
from slurm_gpumem.site.plan import Version
from slurm_gpumem.slurm.client import run
from slurm_gpumem.toml_file import load_toml

FILES = (
    "slurm.conf",
    "gres.conf",
    "job_submit.lua",
    "gpumem.lua",
    "gpumem_read.lua",
    "gpumem_line.lua",
    "gpumem_site.lua",
    "gpumem.toml",
)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=")

Record = Mapping[str, str]


@dataclass(frozen=True)
class Limit:
    """TRES limits of a QOS or an association."""

    entity: str
    """What `sacctmgr modify` calls it: "qos normal", "account phys", "user anna account=phys"."""
    name: str
    """The limit as `sacctmgr ... set` takes it: "MaxTRESPerUser"."""
    tres: str


@dataclass(frozen=True)
class QueuedJob:
    """A pending or running job and what it asks for."""

    partition: str
    tres: str


@dataclass(frozen=True)
class Snapshot:
    """What the cluster says of itself, as far as sharing is concerned."""

    version: Version
    config: Record
    nodes: Tuple[Record, ...] = ()
    partitions: Tuple[Record, ...] = ()
    limits: Tuple[Limit, ...] = ()
    jobs: Tuple[QueuedJob, ...] = ()
    folder: Optional[Path] = None
    """Where slurm.conf and job_submit.lua are, when that is on this host."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of those of FILES that can be read here."""
    left_held: Tuple[str, ...] = ()
    """Our jobs that were requeued after out of memory and are still held."""
    lua: Optional[LuaReport] = None
    """What came of loading the Lua files; None without them or without an interpreter."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The [sharing] table of gpumem.toml."""
    unread: Tuple[str, ...] = ()
    """What could not be asked, and why."""

    @property
    def version_text(self) -> str:
        """The version as Slurm prints it: 22.05.8."""
        return f"{self.version[0]}.{self.version[1]:02d}.{self.version[2]}"

    def shared_nodes(self) -> Tuple[Record, ...]:
        """The nodes with shards or mps units."""
        return tuple(node for node in self.nodes if re.search(r"\b(shard|mps):", node.get("Gres", "")))


def gather() -> Snapshot:
    """Ask the running cluster; SlurmError when its controller does not answer."""
    config = parse_config(run(["scontrol", "show", "config"], timeout_s=5.0))
    nodes = parse_records(run(["scontrol", "-a", "-o", "show", "node"], timeout_s=5.0), "NodeName")
    partitions = parse_records(
        run(["scontrol", "-a", "-o", "show", "partition"], timeout_s=5.0), "PartitionName"
    )
    unread: List[str] = []
    limits: Tuple[Limit, ...] = ()
    if "slurmdbd" in config.get("AccountingStorageType", ""):
        limits = _ask_limits(unread)
    try:
        listed = run(
            [
                "squeue",
                "-a",
                "-h",
                "-t",
                "PENDING,RUNNING,SUSPENDED",
                "-O",
                "Partition:64,tres-per-node:128,tres-per-job:64",
            ],
            timeout_s=5.0,
        )
        jobs = tuple(
            QueuedJob(line[:64].strip(), line[64:].strip()) for line in listed.splitlines() if line.strip()
        )
    except SlurmError as error:
        unread.append(f"jobs: {error}")
        jobs = ()
    folder, files = read_files(config.get("SLURM_CONF"))
    return Snapshot(
        version=parse_version(config.get("SLURM_VERSION", "")),
        config=config,
        nodes=nodes,
        partitions=partitions,
        limits=limits,
        jobs=jobs,
        folder=folder,
        files=files,
        left_held=_ask_left_held(unread),
        lua=try_lua(folder) if folder and "job_submit.lua" in files else None,
        policy=_read_policy(folder, files, unread),
        unread=tuple(unread),
    )


def parse_version(text: str) -> Version:
    """(22, 5, 8) of "22.05.8"; SlurmError when there is no version in it."""
    match = re.search(r"([0-9]+)\.([0-9]+)\.([0-9]+)", text)
    if not match:
        raise SlurmError(f"scontrol show config: no version in {text!r}")
    return int(match[1]), int(match[2]), int(match[3])


def parse_config(text: str) -> Dict[str, str]:
    """The settings of `scontrol show config`; numbered ones (Prolog[0]) also without number."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        key = key.strip()
        if equals and re.fullmatch(r"[A-Za-z_]+(\[[0-9]+\])?", key):
            found[key] = value.strip()
            found.setdefault(key.partition("[")[0], value.strip())
    return found


def parse_records(text: str, first_key: str) -> Tuple[Dict[str, str], ...]:
    """One dictionary for each line `Key=value Key=value ...` that starts with `first_key`.

    Values may hold blanks (OS=Linux 6.1 #1 SMP): a value ends where the next word with = starts.
    """
    records = []
    for line in text.splitlines():
        if not line.startswith(first_key + "="):
            continue
        starts = list(_PAIR.finditer(line))
        ends = [match.start() for match in starts[1:]] + [len(line)]
        record: Dict[str, str] = {}
        for match, end in zip(starts, ends):
            # The first one counts: free text such as Reason= comes last and may look like a field.
            record.setdefault(match[1], line[match.end() : end].strip())
        records.append(record)
    return tuple(records)


def read_files(slurm_conf: Optional[str]) -> Tuple[Optional[Path], Dict[str, str]]:
    """The folder of slurm.conf, when it is on this host, and the files in it that can be read."""
    folder = Path(slurm_conf).parent if slurm_conf else None
    if folder is None or not folder.is_dir():
        return None, {}
    texts = {}
    for name in FILES:
        try:
            texts[name] = (folder / name).read_text(errors="replace")
        except OSError:
            # Not there, or not for us: the checks that need it say so.
            continue
    return folder, texts


def _read_policy(folder: Optional[Path], files: Mapping[str, str], unread: List[str]) -> Mapping[str, Any]:
    if folder is None or "gpumem.toml" not in files:
        return {}
    try:
        sharing = load_toml(folder / "gpumem.toml").get("sharing", {})
    except ConfigError as error:
        unread.append(str(error))
        return {}
    return sharing if isinstance(sharing, dict) else {}


def _ask_left_held(unread: List[str]) -> Tuple[str, ...]:
    try:
        listed = run(["squeue", "-a", "-h", "-t", "PENDING", "-o", "%i|%r|%k"], timeout_s=5.0)
    except SlurmError as error:
        unread.append(f"held jobs: {error}")
        return ()
    words = (line.split("|", 2) for line in listed.splitlines() if f" {END_PREFIX}" in line)
    return tuple(word[0] for word in words if word[1:2] == [REQUEUED_HELD])


def _ask_limits(unread: List[str]) -> Tuple[Limit, ...]:
    try:
        qos = run(
            ["sacctmgr", "-n", "-P", "show", "qos", "format=Name,GrpTRES,MaxTRES,MaxTRESPU,MaxTRESPA"],
            timeout_s=5.0,
        )
        associations = run(
            ["sacctmgr", "-n", "-P", "show", "assoc", "format=Account,User,GrpTRES,MaxTRES"], timeout_s=5.0
        )
    except SlurmError as error:
        unread.append(f"limits: {error}")
        return ()
    return parse_limits(qos, associations)


def parse_limits(qos: str, associations: str) -> Tuple[Limit, ...]:
    """Limits of `sacctmgr -nP show qos` and `show assoc` lines, in the formats that gather() asks for."""
    names = ("GrpTRES", "MaxTRESPerJob", "MaxTRESPerUser", "MaxTRESPerAccount")
    found = []
    for line in qos.splitlines():
        name, *values = line.split("|")
        found += [Limit(f"qos {name}", limit, tres) for limit, tres in zip(names, values) if tres]
    for line in associations.splitlines():
        account, user, *values = [*line.split("|"), "", ""]
        entity = f"user {user} account={account}" if user else f"account {account}"
        found += [Limit(entity, limit, tres) for limit, tres in zip(names, values) if tres]
    return tuple(dict.fromkeys(found))
