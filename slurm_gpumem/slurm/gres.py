"""Slurm's words for GPUs and their shares, as nodes, jobs and options write them: one parser for all.

"gpu:a100:4(S:0-1),shard:a100:160" on a node, "gres:shard:12" and "gres/shard:a100=12" of a job,
"a100:2" of --gpus. A type may begin with a digit (3090, 1g.10gb), so "gpu:3090:2" has a type and a
count, while "gpu:3090" can only be a count, as it is to Slurm.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

GPU_GRES = ("gpu", "shard", "mps")
_FACTOR = {"k": 1024, "m": 1024**2, "g": 1024**3}

_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)

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
    items = (item.strip() for item in re.sub(r"\([^()]*\)", "", text).split(","))
    return [entry for entry in map(_entry, items) if entry is not None]


def gres_word(name: str, gpu_type: Optional[str], count: int) -> str:
    """One entry: "shard:a100:13", "shard:13" without a type."""
    return f"{name}:{gpu_type}:{count}" if gpu_type else f"{name}:{count}"


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
    if item.startswith(("gres/", "gres:")):
        item = item[len("gres/") :]
    name, *words = item.replace("=", ":").split(":")
    known = name.isascii() and name.isidentifier() and name.islower() and name not in ("null", "none")
    count = _count(words[-1]) if words else None
    types = words if count is None else words[:-1]
    # Three words are name, type and count; a third one that is no number is not for us.
    if not known or not all(words) or len(words) > 2 or len(types) > 1:
        return None
    return name, types[0] if types else None, 1 if count is None else count


def _count(word: str) -> Optional[int]:
    """The number of "12" or "2K"; None of a type."""
    factor = _FACTOR.get(word[-1:].lower(), 1)
    digits = word[:-1] if factor > 1 else word
    return int(digits) * factor if _COUNT.fullmatch(digits) else None
