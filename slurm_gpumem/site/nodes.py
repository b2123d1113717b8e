"""Which GPUs the site's nodes have: according to the admin, nvidia-smi, or the running cluster."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError, UnknownNameError, UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.state.nodes import number_of
from slurm_gpumem.units import parse_mib

# The MIG instances of this node: `nvidia-smi mig -lgi`, and the device files that give a job one of them.

MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
# |   0  MIG 1g.18gb          19        9          2:1     |
_ROW = re.compile(r"\|\s*(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+(\d+)\s+\d+:\d+\s*\|")


class Instance(NamedTuple):
    """One GPU instance."""

    gpu: int
    """The number of its GPU."""
    profile: str
    files: Tuple[str, ...] = ()
    """What a job must open to use it; empty where the driver does not say."""


def ask_instances(timeout_s: float = 10.0, minors: Path = MINORS) -> Tuple[Instance, ...]:
    """The instances of this node; none without MIG."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "mig", "-lgi"], capture_output=True, timeout=timeout_s, check=False
        )
        numbers = minors.read_text() if minors.exists() else ""
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_instances(done.stdout.decode(errors="replace"), numbers) if done.returncode == 0 else ()


def parse_instances(listing: str, minors: str) -> Tuple[Instance, ...]:
    """The rows of `nvidia-smi mig -lgi`, with their files by /proc/driver/nvidia-caps/mig-minors.

    An instance with several compute instances has no files: Slurm cannot give out parts of it.
    """
    numbers: Dict[str, str] = dict(line.split() for line in minors.splitlines() if len(line.split()) == 2)
    found = []
    for row in map(_ROW.fullmatch, map(str.strip, listing.splitlines())):
        if row is None:
            continue
        gpu, place = int(row[1]), f"gpu{row[1]}/gi{row[4]}"
        caps = [numbers.get(f"{place}/access"), numbers.get(f"{place}/ci0/access")]
        alone = f"{place}/ci1/access" not in numbers
        files = (f"/dev/nvidia{gpu}", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in caps if number))
        found.append(Instance(gpu, row[2], files if all(caps) and alone else ()))
    return tuple(found)


_DESCRIPTION = re.compile(r"(?:([^=]+)=)?([A-Za-z0-9][A-Za-z0-9_.-]*):([0-9]{1,6}):([0-9.]+\s*[A-Za-z]*)")

MemoryOf = Callable[[str], Optional[int]]
"""MiB of a GPU type; None when it is not known."""


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one type on one node."""

    gpu_type: str
    """"" where Slurm knows no type."""
    count: int
    memory_mib: int
    shares: int = 0
    """Shards (or mps units) of one GPU that the cluster already has; 0 when it is not divided yet."""
    files: Tuple[str, ...] = ()
    """Their device files where gres.conf names them; else they are numbered from /dev/nvidia0 on.

    Of a MIG instance, its several files with commas between them.
    """

    @property
    def instance(self) -> bool:
        """Whether these are MIG instances; they stay whole unless the cluster divides them already."""
        return profile_name(self.gpu_type) is not None and not self.shares


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike, as Slurm writes their names: n[1-4]."""

    nodes: str
    gpus: Tuple[GpuGroup, ...]
    partitions: Tuple[str, ...] = ()
    cpus: int = 0
    """0 when it is not known."""
    memory_mib: int = 0

    @property
    def gpu_count(self) -> int:
        """GPUs of all types on one node."""
        return sum(group.count for group in self.gpus)

    @property
    def mixed(self) -> bool:
        """Whether one node has GPUs of several types."""
        return len(self.gpus) > 1


def parse_descriptions(texts: Sequence[str], here: str) -> Tuple[NodeGroup, ...]:
    """Node groups of `[NODES=]TYPE:COUNT:MEMORY` texts; without NODES= it is the node `here`."""
    found: Dict[str, List[GpuGroup]] = {}
    for text in texts:
        match = _DESCRIPTION.fullmatch(text.strip())
        if not match or int(match[3]) < 1:
            raise UsageError(
                f"--gpu {text!r} is not [NODES=]TYPE:COUNT:MEMORY; "
                "write it like a100:4:40G or n[1-4]=a100:4:40G"
            )
        groups = found.setdefault(match[1] or here, [])
        if any(group.gpu_type == match[2] for group in groups):
            raise UsageError(f"--gpu {text!r}: type {match[2]} is already given for these nodes")
        groups.append(GpuGroup(match[2], int(match[3]), parse_mib(match[4], default_unit="g")))
    return tuple(NodeGroup(nodes, tuple(groups)) for nodes, groups in found.items())


def ask_nvidia_smi(here: str, *, timeout_s: float = 10.0) -> Optional[NodeGroup]:
    """This node's GPUs as the driver names them; None without nvidia-smi or without a GPU."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return parse_nvidia_smi(done.stdout.decode(errors="replace"), here, ask_instances(timeout_s))


def parse_nvidia_smi(text: str, here: str, instances: Sequence[Instance] = ()) -> Optional[NodeGroup]:
    """A node group of `NVIDIA H200, 143771` lines; the smallest memory of a type counts.

    A GPU with MIG instances is those instances, not a whole one.
    """
    if instances:
        return _beside_instances(text, here, instances)
    counts: Dict[str, int] = {}
    memory: Dict[str, int] = {}
    before = ""
    for line in text.splitlines():
        name, _, total = line.rpartition(",")
        if name.strip() and total.strip().isdigit():
            kind = type_of(name)
            if kind in counts and kind != before:
                raise UsageError(
                    f"{here} has GPUs of several types in turn, {before} between two {kind}: Slurm numbers "
                    "GPUs type by type, so CUDA_VISIBLE_DEVICES would name other devices.\n"
                    "Swap the cards so that GPUs of one type follow each other."
                )
            before = kind
            counts[kind] = counts.get(kind, 0) + 1
            memory[kind] = min(memory.get(kind, int(total)), int(total))
    groups = tuple(GpuGroup(kind, count, memory[kind]) for kind, count in counts.items())
    return NodeGroup(here, groups) if groups else None


def _beside_instances(text: str, here: str, instances: Sequence[Instance]) -> Optional[NodeGroup]:
    cards = [line.rpartition(",") for line in text.splitlines() if "," in line]
    divided = {instance.gpu for instance in instances}
    whole = [",".join((card[0], card[2])) for number, card in enumerate(cards) if number not in divided]
    files = [f"/dev/nvidia{number}" for number in range(len(cards)) if number not in divided]
    groups = []
    rest = parse_nvidia_smi("\n".join(whole), here)
    for gpus in rest.gpus if rest else ():
        groups.append(replace(gpus, files=tuple(files[: gpus.count])))
        del files[: gpus.count]
    found: Dict[str, List[Instance]] = {}
    for instance in instances:
        card = type_of(cards[instance.gpu][0]) if instance.gpu < len(cards) else "gpu"
        found.setdefault(f"{card}_{instance.profile}", []).append(instance)
    for kind, of_kind in found.items():
        listed = tuple(",".join(instance.files) for instance in of_kind if instance.files)
        # A profile that nobody knows is left for `gpumem doctor` to name.
        memory = memory_in_table(kind) or 0
        groups.append(GpuGroup(kind, len(of_kind), memory, files=listed))
    return NodeGroup(here, tuple(groups))


def type_of(name: str) -> str:
    """A Slurm type from the driver's name: "NVIDIA A100-SXM4-40GB" is "a100"."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if word]
    words = [word for word in words if word.lower() not in ("nvidia", "tesla", "geforce", "quadro")]
    if words and words[0].lower() in ("rtx", "gtx", "titan") and len(words) > 1:
        return "".join(words[:2]).lower()
    return words[0].lower() if words else "gpu"


def ask_cluster(
    nodes: Sequence[Mapping[str, str]], memory_of: MemoryOf, gres: str, share_mib: int
) -> Tuple[NodeGroup, ...]:
    """Node groups of what `scontrol show node` says; GPUs that are divided already stay so.

    Slurm does not know how much memory a GPU has: `memory_of` its type says it, else its shards;
    with neither it is an error that says how to give it.
    """
    alike: Dict[NodeGroup, List[str]] = {}
    for node in nodes:
        groups = []
        for kind, count, shares in divided_gpus(node, gres):
            memory = (memory_of(kind) if kind else None) or shares * share_mib
            if not memory:
                raise SlurmError(
                    f"Slurm does not say how much memory a GPU of type {kind or '(none)'} has, "
                    "and it is none that we know.\n"
                    f"Give the right size: --gpu '{node.get('NodeName')}={kind or 'gpu'}:{count}:40G', and "
                    "an --gpu for each other kind of node: only those that are named get shares"
                )
            groups.append(GpuGroup(kind, count, memory, shares))
        if groups:
            partitions = tuple(part for part in node.get("Partitions", "").split(",") if part)
            shape = NodeGroup(
                "", tuple(groups), partitions, number_of(node, "CPUTot"), number_of(node, "RealMemory")
            )
            alike.setdefault(shape, []).append(node.get("NodeName", ""))
    return tuple(replace(shape, nodes=fold_names(names)) for shape, names in alike.items())


def divided_gpus(node: Mapping[str, str], gres: str) -> List[Tuple[str, int, int]]:
    """Type ("" for none), GPUs and shares of one GPU, for each kind of GPU of a node."""
    entries = parse_gres(node.get("Gres", ""))
    gpus = [(kind or "", count) for name, kind, count in entries if name == "gpu" and count]
    shares: Dict[str, int] = {}
    for name, kind, count in entries:
        if name == gres:
            shares[kind or ""] = shares.get(kind or "", 0) + count
    everything = sum(count for _, count in gpus)
    return [
        (kind, count, shares[kind] // count if kind in shares and kind else shares.get("", 0) // everything)
        for kind, count in gpus
    ]


def with_host(group: NodeGroup, nodes: Sequence[Mapping[str, str]], names: Sequence[str]) -> NodeGroup:
    """The group with CPUs, memory and partitions of the cluster's nodes of these names, the least of each."""
    known = [node for node in nodes if node.get("NodeName") in names]
    if not known:
        return group
    partitions: List[str] = []
    for node in known:
        partitions += [
            part for part in node.get("Partitions", "").split(",") if part and part not in partitions
        ]
    types = {gpu_type for node in known for gpu_type, _, _ in divided_gpus(node, "shard")}
    # Where Slurm knows no type, a described one says only how much memory there is.
    untyped = types == {""} and not group.mixed
    return replace(
        group,
        gpus=(replace(group.gpus[0], gpu_type=""),) if untyped else group.gpus,
        partitions=tuple(partitions),
        cpus=min(number_of(node, "CPUTot") for node in known),
        memory_mib=min(number_of(node, "RealMemory") for node in known),
    )


def memory_in_table(kind: str) -> Optional[int]:
    """MiB of a GPU type by the table of GPUs."""
    try:
        return find_gpu(kind).memory_mib
    except UnknownNameError:
        return None
