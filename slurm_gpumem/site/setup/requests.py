"""Requests that a cluster must still meet after a change, for each partition and kind of node."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.slurm.gres import gres_word, parse_gres
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.slurm.state.nodes import Record, gives_whole_nodes, number_of

MOST_NODES = 24
"""Daemons that a trial starts at most."""


class Request(NamedTuple):
    """One request, in words and as options of sbatch."""

    what: str
    options: Tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} (sbatch {' '.join(self.options)})"


class NewRequest(NamedTuple):
    """A request for shares: it must be met after the change wherever `instead_of` is met before."""

    request: Request
    instead_of: Request


def kinds_of_nodes(nodes: Sequence[Record], wanted: Mapping[str, str]) -> Tuple[List[str], int]:
    """One node of each kind, and how many kinds were left out because there are too many."""
    kinds: Dict[Tuple[str, ...], str] = {}
    for node in nodes:
        keys = ("Partitions", "CPUTot", "RealMemory", "MemSpecLimit", "Gres", "AvailableFeatures")
        kind = (*(node.get(key, "") for key in keys), wanted.get(node["NodeName"], ""))
        kinds.setdefault(kind, node["NodeName"])
    # Nodes that change come first.
    chosen = sorted(kinds.values(), key=lambda name: name not in wanted)
    return chosen[:MOST_NODES], max(0, len(chosen) - MOST_NODES)


def requests_of_today(nodes: Sequence[Record], gone: str) -> List[Request]:
    """What is asked before and after; shares of the kind `gone`, which the admin replaces, are left out."""
    found = []
    for node, partition, where in _places(nodes):
        cpus = node.get("CPUTot", "1")
        memory = number_of(node, "RealMemory") - number_of(node, "MemSpecLimit")
        found.append(Request(f"1 CPU in {partition}", (*where, "-n1")))
        found.append(Request(f"all CPUs of a node in {partition}", (*where, "-N1", f"-n{cpus}")))
        found.append(Request(f"all memory of a node in {partition}", (*where, f"--mem={memory}")))
        for name, kind, count in parse_gres(node.get("Gres", "")):
            if count and name != gone:
                found += [
                    Request(f"{name} in {partition}", (*where, f"--gres={word}"))
                    for word in dict.fromkeys([f"{name}:1", gres_word(name, kind, 1)])
                ]
                if name not in ("shard", "mps"):
                    # A job's shares are on one GPU, so all of a node's are more than it can have.
                    words = f"--gres={gres_word(name, kind, count)}"
                    found.append(Request(f"every {name} of a node in {partition}", (*where, words)))
    return list(dict.fromkeys(found))


def requests_for_shares(
    nodes: Sequence[Record], partitions: Sequence[Record], plan: SitePlan
) -> List[NewRequest]:
    """What must work after the change: one share, and all shares of one GPU, with and without its type."""
    whole = {part["PartitionName"] for part in partitions if gives_whole_nodes(part)}
    groups = {name: group for group in plan.groups for name in expand_names(group.nodes)}
    found = []
    for node, partition, where in _places(nodes):
        if node["NodeName"] not in groups or partition in whole:
            continue
        for gpus in groups[node["NodeName"]].gpus:
            if gpus.instance:
                continue
            gpu = Request("1 GPU", (*where, f"--gres={gres_word('gpu', gpus.gpu_type, 1)}"))
            most = plan.shares(gpus)
            words = [f"{plan.gres}:1", *(gres_word(plan.gres, gpus.gpu_type, count) for count in (1, most))]
            for word in dict.fromkeys(words):
                request = Request(f"shares of a GPU in {partition}", (*where, f"--gres={word}"))
                found.append(NewRequest(request, gpu))
    return found


def _places(nodes: Sequence[Record]) -> List[Tuple[Record, str, Tuple[str, str]]]:
    return [
        (node, partition, (f"-p{partition}", f"-w{node['NodeName']}"))
        for node in nodes
        for partition in node.get("Partitions", "").split(",")
        if partition
    ]
