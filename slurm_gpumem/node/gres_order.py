"""In which order Slurm has this node's GPUs and MIG instances: SLURM_JOB_GPUS counts by that.

By types as Gres= of slurm.conf names them, and those of one type as gres.conf lists them (seen on 22.05).

A GPU is one File=/dev/nvidiaN, an instance one MultipleFiles= with the capability files of its GPU
and compute instance. Where the file cannot be read, or leaves the GPUs to AutoDetect, nothing is known here.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.node.gpus import NodeGpu
from slurm_gpumem.slurm.conf_file import Where, attributes_of, lines_of, read_from_disk, read_tree
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names

_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
_DEFAULT_CONF = "/etc/slurm/slurm.conf"
_DEVICE = re.compile(r".*/nvidia([0-9]{1,4})")
_CAPABILITY = re.compile(r".*/nvidia-cap([0-9]{1,9})")


def in_slurms_order(gpus: Sequence[NodeGpu], node: str, env: Mapping[str, str]) -> Tuple[NodeGpu, ...]:
    """GPUs with their places in Slurm's count, as far as the files say them."""
    places = {uuid: place for place, uuid in enumerate(listed_order(gpus, node, env))}
    return tuple(replace(gpu, place=places[gpu.uuid]) for gpu in gpus if gpu.uuid in places) or tuple(gpus)


def listed_order(
    gpus: Sequence[NodeGpu], node: str, env: Mapping[str, str], minors: Path = _MINORS
) -> List[str]:
    """UUIDs in Slurm's order; none unless all that the files list for this node are known."""
    names = _names(gpus, minors)
    try:
        devices = _devices(os.path.dirname(env.get("SLURM_CONF") or _DEFAULT_CONF), node)
    except (ConfigError, UsageError):
        return []
    found = [names.get(_name(files), "") for files in devices]
    return found if all(found) else []


def _devices(folder: str, node: str) -> List[List[str]]:
    """The files of each GPU of the node."""
    where = Where(folder)
    types = _types(where, node)
    found: List[Tuple[int, List[str]]] = []
    for statement in read_tree("gres.conf", read_from_disk("gres.conf", where), where).statements:
        nodes = statement.value("nodename")
        if (statement.value("name") or "").lower() != "gpu":
            continue
        if nodes is not None and node not in expand_names(nodes):
            continue
        several, kind = statement.value("multiplefiles"), statement.value("type")
        files = expand_names(several or statement.value("file") or "")
        place = types.index(kind) if kind in types else len(types)
        found += [(place, files)] if several else [(place, [file]) for file in files]
    return [files for _, files in sorted(found, key=lambda device: device[0])]


def _types(where: Where, node: str) -> List[Optional[str]]:
    """The node's GPU types as slurm.conf orders them."""
    statements = read_tree("slurm.conf", read_from_disk("slurm.conf", where), where).statements
    known = attributes_of(lines_of(statements, "nodename")).get(node, {})
    return [kind for name, kind, _ in parse_gres(known.get("gres", "")) if name == "gpu"]


def _names(gpus: Sequence[NodeGpu], minors: Path) -> Dict[str, str]:
    """UUIDs by what names each in the file: "nvidia0", or "cap220" of a compute instance."""
    try:
        numbers = dict(re.findall(r"^(\S+) ([0-9]+)$", minors.read_text(), re.MULTILINE))
    except OSError:
        numbers = {}
    found = {}
    for gpu in gpus:
        path = f"gpu{gpu.number}/gi{gpu.gpu_instance}/ci{gpu.compute_instance}/access"
        found[f"cap{numbers.get(path)}" if gpu.instance else f"nvidia{gpu.number}"] = gpu.uuid
    return found


def _name(files: Sequence[str]) -> str:
    capabilities = [int(found[1]) for found in map(_CAPABILITY.fullmatch, files) if found]
    device = next((found[1] for found in map(_DEVICE.fullmatch, files) if found), "")
    # The driver numbers a GPU instance before its compute instances.
    return f"cap{max(capabilities)}" if capabilities else f"nvidia{device}"
