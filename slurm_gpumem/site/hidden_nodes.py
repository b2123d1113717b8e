"""Nodes that slurm.conf has and Slurm does not show: State=CLOUD while they are off, and State=FUTURE."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping

from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf_file import attributes_of, lines_of, partition_nodes, read_tree
from slurm_gpumem.slurm.node_names import fold_names

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
