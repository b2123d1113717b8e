"""What Slurm itself says of its GPUs: types, shards or mps units per GPU, CPUs and memory beside them.

Nothing about a site is hard-coded. Two `scontrol` calls with a time limit tell it; the answer is
kept in ~/.cache/gpumem for some minutes, so that submitting many jobs does not ask each time.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError

Version = Tuple[int, int, int]
WHOLE_GPU_BESIDE_SHARDS: Version = (23, 2, 6)
"""From this version on a gpu:1 job and shard jobs keep off each other's GPUs."""

_SCHEMA = 1
_GRES = re.compile(r"(?:gres[/:])?([a-z_]+)(?::([A-Za-z][^:=]*))?(?:[:=]([0-9]+)([kKmMgG]?))?$")
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class GpuNodes(NamedTuple):
    """Nodes that are alike: so many GPUs of one type each, in the same partitions."""

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

    def in_partitions(self, names: Sequence[str]) -> Tuple[GpuNodes, ...]:
        """The GPU nodes of any of these partitions."""
        return tuple(group for group in self.gpu_nodes if set(group.partitions) & set(names))


def parse_gres(text: str) -> List[Tuple[str, Optional[str], int]]:
    """Name, type and count of each entry of "gpu:a100:4(S:0-1),shard:a100:160"; a bare name counts 1."""
    entries = []
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        match = _GRES.match(item.strip())
        if match and item.strip() not in ("", "null", "none"):
            count = int(match[3]) * _FACTOR[match[4].lower()] if match[3] is not None else 1
            entries.append((match[1], match[2], count))
    return entries


def units_by_type(gres: str, name: str) -> Dict[Optional[str], int]:
    """Shards (or mps units) of one GPU by its type, from a node's Gres; nothing without any."""
    entries = parse_gres(gres)
    gpus = [(kind, count) for entry, kind, count in entries if entry == "gpu" and count]
    node_gpus = sum(count for _, count in gpus)
    units = {kind: _units(entries, name, kind, count, node_gpus) for kind, count in gpus}
    return {kind: count for kind, count in units.items() if count}


def parse_cluster(nodes: str, partitions: str) -> Cluster:
    """Read `scontrol show node -o` and `scontrol show partition -o`."""
    groups: Dict[GpuNodes, int] = {}
    version: Version = (0, 0, 0)
    for line in nodes.splitlines():
        said = _field(line, "Version")
        if said and re.match(r"[0-9]+\.[0-9]+\.[0-9]+", said):
            numbers = said.split("-")[0].split(".")
            version = max(version, (int(numbers[0]), int(numbers[1]), int(numbers[2])))
        for group in _gpu_nodes(line):
            groups[group] = groups.get(group, 0) + 1
    names = [(_field(line, "PartitionName"), line) for line in partitions.splitlines()]
    return Cluster(
        gpu_nodes=tuple(group._replace(nodes=count) for group, count in groups.items()),
        default_partition=next((name for name, line in names if _field(line, "Default") == "YES"), None),
        partitions=tuple(name for name, _ in names if name),
        exclusive_partitions=tuple(name for name, line in names if name and _gives_whole_nodes(line)),
        version=version,
    )


def discover_cluster(
    clusters: Optional[str] = None, *, timeout_s: float = 3.0, max_age_s: float = 600.0
) -> Tuple[Cluster, Tuple[str, ...]]:
    """The cluster's GPUs, from the cache or from Slurm, and warnings (an old answer when Slurm is mute)."""
    path = _cache_path(clusters)
    known, age_s = _read_cache(path)
    if known is not None and age_s <= max_age_s:
        return known, ()
    from slurm_gpumem.slurm.client import SlurmUnreachableError

    try:
        cluster = _ask_slurm(clusters, timeout_s)
    except SlurmUnreachableError as error:
        if known is None:
            raise
        return known, (f"{error}; using what it said {age_s / 60:.0f} minutes ago",)
    _write_cache(path, cluster)
    return cluster, ()


def _ask_slurm(clusters: Optional[str], timeout_s: float) -> Cluster:
    from slurm_gpumem.slurm.client import run

    where = [f"--clusters={clusters}"] if clusters else []
    partitions = run(["scontrol", "-a", *where, "-o", "show", "partition"], timeout_s=timeout_s)
    nodes = run(["scontrol", "-a", *where, "-o", "show", "node"], timeout_s=timeout_s)
    cluster = parse_cluster(nodes, partitions)
    if not cluster.partitions:
        raise SlurmError("scontrol show partition: names no partition; is this cluster configured?")
    return cluster


def _gives_whole_nodes(partition: str) -> bool:
    # 26.05 writes Exclusive=NODE where older versions write OverSubscribe=EXCLUSIVE.
    return _field(partition, "OverSubscribe") == "EXCLUSIVE" or _field(partition, "Exclusive") == "NODE"


def _gpu_nodes(line: str) -> List[GpuNodes]:
    gres = parse_gres(_field(line, "Gres") or "")
    gpus = [(gpu_type, count) for name, gpu_type, count in gres if name == "gpu" and count]
    node_gpus = sum(count for _, count in gpus)
    partitions = tuple((_field(line, "Partitions") or "").split(","))
    return [
        GpuNodes(
            partitions=partitions,
            gpu_type=gpu_type,
            gpus=count,
            node_gpus=node_gpus,
            shards_per_gpu=_units(gres, "shard", gpu_type, count, node_gpus),
            mps_per_gpu=_units(gres, "mps", gpu_type, count, node_gpus),
            cpus=_number(line, "CPUEfctv") or _number(line, "CPUTot"),
            threads_per_core=max(_number(line, "ThreadsPerCore"), 1),
            memory_mib=max(_number(line, "RealMemory") - _number(line, "MemSpecLimit"), 0),
        )
        for gpu_type, count in gpus
    ]


def _units(
    gres: List[Tuple[str, Optional[str], int]], name: str, gpu_type: Optional[str], gpus: int, node_gpus: int
) -> int:
    """Shards or mps units of one GPU; those without a type are spread over all the node's GPUs."""
    typed = sum(count for entry, kind, count in gres if entry == name and kind and kind == gpu_type)
    if typed:
        return typed // gpus
    return sum(count for entry, kind, count in gres if entry == name and kind is None) // node_gpus


def _field(line: str, key: str) -> Optional[str]:
    # The first hit: free text that could look like a field (Reason, Comment) stands behind these.
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match else None


def _number(line: str, key: str) -> int:
    text = _field(line, key) or ""
    return int(text) if text.isascii() and text.isdigit() else 0


def _cache_path(clusters: Optional[str]) -> str:
    """A file of its own for every cluster: by its configuration's path and the --clusters given."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = re.sub(r"[^A-Za-z0-9.]+", "-", f"{os.environ.get('SLURM_CONF', 'default')} {clusters or ''}")
    return os.path.join(base, "gpumem", f"cluster-{key.strip('-')[-120:]}.json")


def _configuration_stamp() -> float:
    """When the configuration was last changed, so that a change is seen at once; 0 without a file."""
    try:
        return os.stat(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").st_mtime
    except OSError:
        return 0.0


def _read_cache(path: str) -> Tuple[Optional[Cluster], float]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            kept: Any = json.load(file)
        if kept["schema"] != _SCHEMA or kept["configuration"] != _configuration_stamp():
            return None, 0.0
        groups = [{**group, "partitions": tuple(group["partitions"])} for group in kept["gpu_nodes"]]
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
