"""Checks of the nodes as Slurm has them: usable, with as many shares as gres.conf and their memory allow."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.estimators.gpus import find_gpu, gpu_table, site_gpu_file
from slurm_gpumem.site.doctor.findings import Finding, Severity, warning
from slurm_gpumem.site.doctor.hosts import HostReport, takes_jobs
from slurm_gpumem.site.nodes import divided_gpus
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf_file import parse
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names, fold_names
from slurm_gpumem.text import clipped


class GresLine(NamedTuple):
    """One line of gres.conf."""

    nodes: Optional[List[str]]
    """None for all nodes."""
    name: str
    kind: Optional[str]
    files: List[str]
    units: Optional[int]


class GresFile(NamedTuple):
    """The lines of gres.conf, as far as they can be read."""

    lines: List[GresLine]
    complete: bool
    """False where something is left to detection or to another file: then nothing can be counted."""

    def units(self, node: str, name: str) -> Optional[int]:
        """How many a node has; None when the file does not say."""
        found = [line for line in self._of(node) if line.name == name]
        counts = [line.units if line.units is not None else len(line.files) or None for line in found]
        if not self.complete or not found or None in counts:
            return None
        return sum(count for count in counts if count is not None)

    def devices(self, node: str) -> List[str]:
        """The device files of a node's GPUs."""
        return [path for line in self._of(node) if line.name == "gpu" for path in line.files]

    def _of(self, node: str) -> List[GresLine]:
        return [line for line in self.lines if line.nodes is None or node in line.nodes]


def parse_gres_conf(text: str) -> GresFile:
    """Read the file; lines that are not ours are left out."""
    lines: List[GresLine] = []
    complete = True
    for statement in parse("gres.conf", text):
        if (statement.value("autodetect") or "off").lower() != "off" or statement.include:
            complete = False
        name, listed, count = (statement.value(key) for key in ("name", "nodename", "count"))
        if name is None:
            continue
        try:
            nodes = expand_names(listed) if listed is not None else None
            several = statement.value("multiplefiles")
            files = expand_names(several or statement.value("file") or "")
        except UsageError:
            complete = False
            continue
        if count is None and several:
            count = "1"  # All of its files are one device: a MIG instance.
        units = parse_gres(f"x:{count}") if count is not None else []
        lines.append(GresLine(nodes, name, statement.value("type"), files, units[0][2] if units else None))
    return GresFile(lines, complete)


_OUR_REASONS = re.compile(r"(?i)gres/|prolog|epilog|count reported|batch job complete failure")
_LONGEST_REASON = 80


def nodes_are_usable(now: Snapshot) -> Iterator[Finding]:
    """A cluster whose shared nodes are all drained shares nothing; some reasons are ours to explain."""
    down = [node for node in now.shared_nodes() if not takes_jobs(node.get("State", "IDLE"))]
    if not down:
        return
    reasons: Dict[str, List[str]] = {}
    for node in down:
        reason = re.sub(r" \[\S+@\S+\]$", "", node.get("Reason", "")) or f"state {node.get('State', '?')}"
        reasons.setdefault(reason, []).append(node["NodeName"])
    everything = len(down) == len(now.shared_nodes())
    for reason, names in reasons.items():
        ours = _OUR_REASONS.search(reason)
        if not everything and not ours:
            continue
        what = f"{fold_names(names)}: {clipped(reason, _LONGEST_REASON)}"
        yield Finding(
            Severity.CRITICAL if everything else Severity.WARNING,
            "nodes-down",
            f"no node with shares is up: {what}" if everything else what,
            "no shared job can start" if everything else "the node takes no jobs",
            "remove the cause, then scontrol update NodeName=... State=RESUME",
        )


def gres_files_agree(now: Snapshot) -> Iterator[Finding]:
    """slurmd drains a node whose gres.conf has fewer of something than slurm.conf says."""
    text = now.files.get("gres.conf")
    if text is None:
        return
    gres = parse_gres_conf(text)
    differ: Dict[Tuple[str, int, int], List[str]] = {}
    for node in now.shared_nodes():
        wanted: Dict[str, int] = {}
        for name, _, count in parse_gres(node.get("Gres", "")):
            wanted[name] = wanted.get(name, 0) + count
        for name, count in wanted.items():
            have = gres.units(node["NodeName"], name)
            if have is not None and have != count:
                differ.setdefault((name, count, have), []).append(node["NodeName"])
    for (name, count, have), names in differ.items():
        fewer = have < count
        yield Finding(
            Severity.CRITICAL if fewer else Severity.WARNING,
            "gres-conf",
            f"{fold_names(names)}: {count} {name} in slurm.conf, {have} in gres.conf",
            "slurmd's next start drains the node" if fewer else "the rest is never given to a job",
            "make both equal (gpumem setup), then restart slurmd",
        )


def shares_fit_the_memory(now: Snapshot) -> Iterator[Finding]:
    """More shares than a GPU has memory: jobs that fit by Slurm's count run out of memory."""
    shard_mib = int(now.policy.get("shard_mib", SHARING.default("shard_mib")))
    here = now.here or HostReport()
    own = [int(mib) for _, mib in here.facts.get("gpus", ())]
    found: Dict[Tuple[Severity, str], List[str]] = {}
    for node in now.shared_nodes():
        for kind, _, shares in divided_gpus(node, "shard"):
            is_here = bool(own) and node["NodeName"] in here.nodes
            sizes = own if is_here else _sizes(kind)
            if not sizes or shares * shard_mib <= min(sizes):
                continue
            certain = is_here or shares * shard_mib > max(sizes)
            severity = Severity.CRITICAL if certain else Severity.WARNING
            what = f"{shares} shards of {shard_mib} MiB on one {kind or 'GPU'}, which has {min(sizes)} MiB"
            if not certain:
                what += f" (or {max(sizes)}, by its model)"
            found.setdefault((severity, what), []).append(node["NodeName"])
    for (severity, what), names in found.items():
        yield Finding(
            severity,
            "too-many-shards",
            f"{fold_names(names)}: {what}",
            "jobs that fit by Slurm's count run out of memory together",
            "fewer shards in Gres= and gres.conf (gpumem setup); if it has more memory, say so in "
            "gpumem-gpus.toml; gpumem doctor --here measures it on the node",
        )


def names_are_known(now: Snapshot) -> Iterator[Finding]:
    """Names in gpumem.toml that nothing else has: partitions and groups."""
    partitions = {part["PartitionName"] for part in now.partitions}
    for name in now.policy.get("partition", {}):
        if name not in partitions:
            yield _unknown(f"[sharing.partition.{name}]: there is no partition {name}")
    for name in now.tables.get("accounting", {}).get("readers", ()):
        if not _is_group(name):
            yield _unknown(f"accounting.readers: there is no group {name}")


def _unknown(what: str) -> Finding:
    return warning("unknown-name", what, "the setting has no effect", "correct the name in gpumem.toml")


def _sizes(kind: str) -> List[int]:
    """MiB of the GPUs that sites call so: an "a100" may be one with 40 or 80 GB; none for an unknown type."""
    try:
        gpu = find_gpu(kind) if kind else None
    except UnknownNameError:
        return []
    if gpu is None:
        return []
    if site_gpu_file().exists():
        return [gpu.memory_mib]
    larger = [other.memory_mib for name, other in gpu_table().items() if name.startswith(f"{gpu.name}-")]
    return [gpu.memory_mib, *larger]


def _is_group(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
