"""Slurm's words for GPUs and their shares, as nodes, jobs and options write them: one parser for all.

"gpu:a100:4(S:0-1),shard:a100:160" on a node, "gres:shard:12" and "gres/shard:a100=12" of a job,
"a100:2" of --gpus. A type may begin with a digit (3090, 1g.10gb), so "gpu:3090:2" has a type and a
count, while "gpu:3090" can only be a count, as it is to Slurm.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

GPU_GRES = ("gpu", "shard", "mps")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_COUNT = re.compile(r"([0-9]+)([kKmMgG]?)")
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_PLACES = re.compile(r"\([^)]*\)")

Entry = Tuple[str, Optional[str], int]
"""Name, type and count of one gres."""


class Held(NamedTuple):
    """The GPU part of a job's request."""

    gres: str
    """ "shard", "mps" or "gpu"."""
    gpu_type: Optional[str]
    units: int
    """Shards or mps units; GPUs for "gpu"."""


def parse_gres(text: str) -> List[Entry]:
    """Name, type and count of each entry; a bare name counts 1, what is no gres is left out."""
    items = (item.strip() for item in _PLACES.sub("", text).split(","))
    return [entry for entry in map(_entry, items) if entry is not None]


def parse_gpus(text: str) -> List[Tuple[Optional[str], int]]:
    """Type and count of each entry of --gpus and its kin: "2", "a100:1", "a100:1,h200:1", "a100"."""
    found = [_entry(f"gpu:{item.strip()}") for item in text.split(",") if item.strip()]
    return [(kind, count) for _, kind, count in filter(None, found) if count > 0]


def held_by(request: str) -> Optional[Held]:
    """The GPU part of a request; None when it has none, or several."""
    parts = [entry for entry in parse_gres(request) if entry[0] in GPU_GRES and entry[2]]
    return Held(*parts[0]) if len(parts) == 1 else None


def shares(request: str) -> Optional[int]:
    """The shards (or mps units) in a request; None without any."""
    counts = [count for name, _, count in parse_gres(request) if name in ("shard", "mps")]
    return sum(counts) if counts else None


def replaced(request: str, gres: str) -> str:
    """The value of Gres= that puts `gres` in the place of the GPU part and keeps the rest."""
    items = [re.sub(r"^gres[:/]", "", item.strip()) for item in request.split(",") if item.strip()]
    return ",".join(
        gres if re.match(r"(?:gpu|shard|mps)(?:[:=]|$)", item) else item.replace("=", ":") for item in items
    )


def units_by_type(gres: str, name: str) -> Dict[Optional[str], int]:
    """Shards (or mps units) of one GPU by its type, from a node's Gres; nothing without any."""
    entries = parse_gres(gres)
    gpus = [(kind, count) for entry, kind, count in entries if entry == "gpu" and count]
    node_gpus = sum(count for _, count in gpus)
    units = {kind: units_per_gpu(entries, name, kind, count, node_gpus) for kind, count in gpus}
    return {kind: count for kind, count in units.items() if count}


def units_per_gpu(
    entries: Sequence[Entry], name: str, gpu_type: Optional[str], gpus: int, node_gpus: int
) -> int:
    """Shards or mps units of one GPU; those without a type are spread over all the node's GPUs."""
    typed = sum(count for entry, kind, count in entries if entry == name and kind and kind == gpu_type)
    if typed:
        return typed // gpus
    return sum(count for entry, kind, count in entries if entry == name and kind is None) // node_gpus


def _entry(item: str) -> Optional[Entry]:
    if item in ("null", "none"):
        return None
    words = re.sub(r"^gres[/:]", "", item).replace("=", ":").split(":")
    if not _NAME.fullmatch(words[0]) or not all(words) or len(words) > 3:
        return None
    number = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
    if number is None:
        return (words[0], words[1] if len(words) > 1 else None, 1) if len(words) < 3 else None
    count = int(number[1]) * _FACTOR[number[2].lower()]
    return words[0], words[1] if len(words) == 3 else None, count
