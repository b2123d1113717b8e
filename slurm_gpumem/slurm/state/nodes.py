"""What Slurm itself says of its GPUs: types, shards or mps units per GPU, CPUs and memory beside them.

Nothing about a site is hard-coded. Two `scontrol` calls with a time limit tell it; the answer is
kept in ~/.cache/gpumem for some minutes, so that submitting many jobs does not ask each time.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient, SlurmUnreachableError, Version, parse_version
from slurm_gpumem.slurm.gres import parse_gres, units_by_type, units_per_gpu
from slurm_gpumem.xdg import cache_path

WHOLE_GPU_BESIDE_SHARDS: Version = (23, 2, 6)
"""From this version on a gpu:1 job and shard jobs keep off each other's GPUs."""
SHARES_WITHOUT_TYPE_BESIDE_INSTANCES: Version = (23, 2, 0)
"""From here on the shares of a node with MIG instances have no type in Gres= (in gres.conf they do).

Measured: 22.05 takes both; on 24.11 and 26.05 a type makes the node INVAL. Without it, steps of jobs that ask
for shares of a type fail on all three."""
GPU_TYPE_CAN_CHANGE: Version = (23, 2, 0)
"""Before this version a waiting job whose request is changed to another GPU type gets both types."""

_SCHEMA = 2
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=")
_TIMEOUT_S = 5.0

Record = Mapping[str, str]
"""What `scontrol -o show` says of one node or partition."""


class GpuNodes(NamedTuple):
    """Nodes that are alike: the same number of GPUs of one type each, in the same partitions."""

    partitions: Tuple[str, ...]
    gpu_type: Optional[str]
    gpus: int
    """GPUs of this type on one node."""
    node_gpus: int
    """GPUs of all types on one node: what its CPUs and memory are divided by."""
    shards_per_gpu: int
    mps_per_gpu: int
    cpus: int
    threads_per_core: int
    memory_mib: int
    nodes: int = 1
    features: Tuple[str, ...] = ()
    """What --constraint may name of them."""
    weight: int = 1
    """The site's weight: Slurm takes the lightest nodes first."""

    def units_per_gpu(self, gres: str) -> int:
        """How many shards (or mps units) one GPU is divided into; 0 when it is not."""
        return self.mps_per_gpu if gres == "mps" else self.shards_per_gpu


class Cluster(NamedTuple):
    """A cluster's GPUs, as far as a submission must know them."""

    gpu_nodes: Tuple[GpuNodes, ...]
    default_partition: Optional[str]
    partitions: Tuple[str, ...]
    exclusive_partitions: Tuple[str, ...]
    """Partitions that give whole nodes."""
    version: Version

    @property
    def default_partitions(self) -> Tuple[str, ...]:
        """Where a job may run that names no partition."""
        return (self.default_partition,) if self.default_partition else self.partitions

    def in_partitions(self, names: Sequence[str]) -> Tuple[GpuNodes, ...]:
        """The GPU nodes of any of these partitions."""
        return tuple(group for group in self.gpu_nodes if set(group.partitions) & set(names))


def ask_nodes(client: SlurmClient, *options: str, timeout_s: float = _TIMEOUT_S) -> Tuple[Record, ...]:
    """Every node of the cluster."""
    text = client.run(["scontrol", "-a", *options, "-o", "show", "node"], timeout_s=timeout_s)
    return parse_records(text, "NodeName")


def ask_partitions(client: SlurmClient, *options: str, timeout_s: float = _TIMEOUT_S) -> Tuple[Record, ...]:
    """Every partition of the cluster."""
    text = client.run(["scontrol", "-a", *options, "-o", "show", "partition"], timeout_s=timeout_s)
    return parse_records(text, "PartitionName")


def units_in_partitions(
    client: SlurmClient, partitions: Sequence[str], gres: str
) -> Dict[Optional[str], int]:
    """Shards (or mps units) of one GPU by its type, the most that any node of these partitions has."""
    text = client.run(["sinfo", "-h", "-p", ",".join(partitions), "-o", "%G"], timeout_s=_TIMEOUT_S)
    found: Dict[Optional[str], int] = {}
    for line in text.splitlines():
        for kind, units in units_by_type(line, gres).items():
            found[kind] = max(units, found.get(kind, 0))
    return found


def gpu_types_in_partitions(client: SlurmClient, partitions: Sequence[str]) -> Tuple[str, ...]:
    """The GPU types of these partitions, MIG instances among them; GPUs without a type are left out."""
    text = client.run(["sinfo", "-h", "-p", ",".join(partitions), "-o", "%G"], timeout_s=_TIMEOUT_S)
    entries = [entry for line in text.splitlines() for entry in parse_gres(line)]
    return tuple(sorted({kind for name, kind, count in entries if name == "gpu" and kind and count}))


def parse_records(text: str, first_key: str) -> Tuple[Record, ...]:
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


def cluster_of(nodes: Sequence[Record], partitions: Sequence[Record]) -> Cluster:
    """The GPUs of these nodes and partitions."""
    groups: Dict[GpuNodes, int] = {}
    version: Version = (0, 0, 0)
    for node in nodes:
        try:
            version = max(version, parse_version(node.get("Version", "")))
        except SlurmError:
            pass  # A node that has never registered does not say.
        for group in _gpu_nodes(node):
            groups[group] = groups.get(group, 0) + 1
    names = [(part["PartitionName"], part) for part in partitions]
    return Cluster(
        gpu_nodes=tuple(group._replace(nodes=count) for group, count in groups.items()),
        default_partition=next((name for name, part in names if part.get("Default") == "YES"), None),
        partitions=tuple(name for name, _ in names),
        exclusive_partitions=tuple(name for name, part in names if gives_whole_nodes(part)),
        version=version,
    )


def discover_cluster(
    clusters: Optional[str] = None,
    *,
    timeout_s: float = 3.0,
    max_age_s: float = 600.0,
    client: SlurmClient = COMMANDS,
) -> Tuple[Cluster, Tuple[str, ...]]:
    """The cluster's GPUs, from the cache or from Slurm, and warnings (an old answer when Slurm is mute)."""
    path = _cache_path(clusters)
    known, age_s = _read_cache(path)
    if known is not None and age_s <= max_age_s:
        return known, ()
    try:
        cluster = _ask_slurm(client, clusters, timeout_s)
    except SlurmUnreachableError as error:
        if known is None:
            raise
        return known, (f"{error}; using what it said {age_s / 60:.0f} minutes ago",)
    _write_cache(path, cluster)
    return cluster, ()


def partitions_of(named: str, clusters: Optional[str] = None) -> Tuple[str, ...]:
    """Where a job may run that names these; none where Slurm does not say what its default partition is."""
    wanted = tuple(name for name in named.split(",") if name)
    try:
        return wanted or discover_cluster(clusters)[0].default_partitions
    except SlurmError:
        return ()


def gives_whole_nodes(partition: Record) -> bool:
    """Whether jobs in this partition get nodes to themselves."""
    # 26.05 writes Exclusive=NODE where older versions write OverSubscribe=EXCLUSIVE.
    return partition.get("OverSubscribe", "").startswith("EXCLUSIVE") or partition.get("Exclusive") == "NODE"


def _ask_slurm(client: SlurmClient, clusters: Optional[str], timeout_s: float) -> Cluster:
    where = [f"--clusters={clusters}"] if clusters else []
    partitions = ask_partitions(client, *where, timeout_s=timeout_s)
    cluster = cluster_of(ask_nodes(client, *where, timeout_s=timeout_s), partitions)
    if not cluster.partitions:
        raise SlurmError("scontrol show partition: names no partition; is this cluster configured?")
    return cluster


def _gpu_nodes(node: Record) -> List[GpuNodes]:
    gres = parse_gres(node.get("Gres", ""))
    gpus = [(gpu_type, count) for name, gpu_type, count in gres if name == "gpu" and count]
    node_gpus = sum(count for _, count in gpus)
    partitions = tuple(node.get("Partitions", "").split(","))
    return [
        GpuNodes(
            partitions=partitions,
            gpu_type=gpu_type,
            gpus=count,
            node_gpus=node_gpus,
            shards_per_gpu=units_per_gpu(gres, "shard", gpu_type, count, node_gpus),
            mps_per_gpu=units_per_gpu(gres, "mps", gpu_type, count, node_gpus),
            cpus=number_of(node, "CPUEfctv") or number_of(node, "CPUTot"),
            threads_per_core=max(number_of(node, "ThreadsPerCore"), 1),
            memory_mib=max(number_of(node, "RealMemory") - number_of(node, "MemSpecLimit"), 0),
            features=_features(node),
            weight=number_of(node, "Weight") or 1,
        )
        for gpu_type, count in gpus
    ]


def _features(node: Record) -> Tuple[str, ...]:
    named = node.get("ActiveFeatures") or node.get("AvailableFeatures") or ""
    return tuple(name for name in named.split(",") if name and name != "(null)")


def number_of(node: Record, key: str) -> int:
    """A number that scontrol shows of a node; 0 where there is none."""
    text = node.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _cache_path(clusters: Optional[str]) -> str:
    """A file of its own for every cluster: by its configuration's path and the --clusters given."""
    key = re.sub(r"[^A-Za-z0-9.]+", "-", f"{os.environ.get('SLURM_CONF', 'default')} {clusters or ''}")
    return cache_path(f"cluster-{key.strip('-')[-120:]}.json")


def _configuration_stamp() -> List[float]:
    """When slurm.conf and the gpumem.toml beside it were changed, so that it is seen at once; 0: not there.

    gpumem.toml says that jobs may share only after slurmctld was restarted with shares.
    """
    conf = os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
    return [_changed(conf), _changed(os.path.join(os.path.dirname(conf), "gpumem.toml"))]


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_cache(path: str) -> Tuple[Optional[Cluster], float]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            kept: Any = json.load(file)
        if kept["schema"] != _SCHEMA or kept["configuration"] != _configuration_stamp():
            return None, 0.0
        groups = [
            {**group, "partitions": tuple(group["partitions"]), "features": tuple(group["features"])}
            for group in kept["gpu_nodes"]
        ]
        cluster = Cluster(
            gpu_nodes=tuple(GpuNodes(**group) for group in groups),
            default_partition=kept["default_partition"],
            partitions=tuple(kept["partitions"]),
            exclusive_partitions=tuple(kept["exclusive_partitions"]),
            version=(kept["version"][0], kept["version"][1], kept["version"][2]),
        )
        age_s = time.time() - float(kept["time"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        # No cache, or one that another version of us (or a full disk) wrote: ask Slurm again.
        return None, 0.0
    return (cluster, age_s) if age_s >= 0 else (None, 0.0)


def _write_cache(path: str, cluster: Cluster) -> None:
    from pathlib import Path

    from slurm_gpumem.files import write_json

    kept = {
        "schema": _SCHEMA,
        "time": time.time(),
        "configuration": _configuration_stamp(),
        **cluster._asdict(),
        "gpu_nodes": [group._asdict() for group in cluster.gpu_nodes],
    }
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_json(Path(path), kept, mode=None)
    except OSError:
        # A home that cannot be written (read-only, over quota) costs the cache, not the job.
        return
