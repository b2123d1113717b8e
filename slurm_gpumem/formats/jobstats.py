"""jobstats' summary of a job in Slurm's AdminComment: "JS1:" and base64 of gzip'ed JSON, one entry a node.

jobstats and reportseff read it there (github.com/PrincetonUniversity/jobstats, its `__str__`). Both decode
all of the comment, and newer Pythons refuse what stands behind the base64: so the summary stands alone. What
our plug-in had noted there goes into it; where anything else stands, nothing is written.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.comment import PREFIX
from slurm_gpumem.units import MIB

MARK = "JS1:"
_MOST_BYTES = 65_535
"""Of an AdminComment in slurmdbd, which cuts off the rest without a word."""
_LARGEST = 1 << 22
_GZIP = 31
"""zlib's word for a gzip header."""


class GpuUse(NamedTuple):
    """What a job had of one GPU: of a shared one its share, and its own use of it."""

    name: str
    peak_mib: float
    memory_mib: float
    busy: Optional[float]
    """0 to 1; None where nobody knows: then it is left out, never 0."""


class NodeUse(NamedTuple):
    """What a job used of one node."""

    name: str
    cpus: int
    cpu_s: float
    memory_bytes: int
    used_bytes: int
    gpus: Tuple[GpuUse, ...]


def format_summary(nodes: Tuple[NodeUse, ...], run_s: int, comment: str = "") -> Optional[str]:
    """The comment in place of the one that stands there; None where that stays."""
    if comment and (not comment.startswith(PREFIX) or " " in comment):
        return None
    table: Dict[str, Any] = {
        "nodes": {node.name: _node(node) for node in nodes},
        "total_time": run_s,
        "gpus": sum(len(node.gpus) for node in nodes),
    }
    if comment:
        table["gpumem"] = comment
    text = json.dumps(table, separators=(",", ":")).encode()
    summary = MARK + base64.b64encode(gzip.compress(text, mtime=0)).decode()
    return summary if len(summary) <= _MOST_BYTES else None


def read_summary(comment: str) -> Optional[Mapping[str, Any]]:
    """What a summary holds; None where there is none, or it is damaged."""
    word = comment.partition(" ")[0]
    if not word.startswith(MARK):
        return None
    try:
        data = base64.b64decode(word[len(MARK) :].strip(), validate=True)
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(_GZIP).decompress(data, _LARGEST)
        table = json.loads(data)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None  # also "JS1:Short" and "JS1:None", which say that there is nothing
    return table if isinstance(table, dict) else None


def _node(node: NodeUse) -> Dict[str, Any]:
    # All four: without one of them jobstats 1.0 ends with a traceback.
    table: Dict[str, Any] = {
        "total_memory": node.memory_bytes,
        "used_memory": node.used_bytes,
        "total_time": round(node.cpu_s, 1),
        "cpus": node.cpus,
    }
    if node.gpus:
        table["gpu_total_memory"] = {gpu.name: round(gpu.memory_mib * MIB) for gpu in node.gpus}
        table["gpu_used_memory"] = {gpu.name: round(gpu.peak_mib * MIB) for gpu in node.gpus}
        busy = {gpu.name: round(100 * gpu.busy, 1) for gpu in node.gpus if gpu.busy is not None}
        if busy:
            table["gpu_utilization"] = busy
    return table
