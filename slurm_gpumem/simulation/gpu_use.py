"""What is known of a past job's GPU memory and activity, and from whom.

In this order: our own job records, Slurm's gres/gpumem and gres/gpuutil, jobstats' summary in the admin
comment ("JS1:" and base64 of JSON, compressed or not). What none of them knows is assumed (what_if.py).
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any, Mapping, NamedTuple, Optional

from slurm_gpumem.slurm.state.history import PastJob
from slurm_gpumem.utilization.interference import packaged

RECORDS, SLURM, JOBSTATS, ASSUMED = "job records", "gres/gpumem", "jobstats", "assumed"
SOURCES = (RECORDS, SLURM, JOBSTATS, ASSUMED)
_JOBSTATS = "JS1:"
_LARGEST = 1 << 22
_GZIP = 31
"""zlib's word for a gzip header."""
_MIB = 1 << 20


class GpuUse(NamedTuple):
    """Measured use of one GPU of a job."""

    mib: int
    """The most on any one GPU."""
    active: Optional[float]
    """SM activity, 0 to 1; None where only memory is known."""
    source: str


def gpu_use(job: PastJob, records: Mapping[str, GpuUse]) -> Optional[GpuUse]:
    """The best that is known; None where nothing is."""
    found = records.get(job.job_id)
    if found is not None:
        return found
    if job.gpu_mib is not None and job.gpus == 1:
        return GpuUse(int(job.gpu_mib) + 1, _active(job.gpu_util), SLURM)
    return read_jobstats(job.comment) if job.comment.startswith(_JOBSTATS) else None


def read_jobstats(comment: str) -> Optional[GpuUse]:
    """The GPU's part of a jobstats summary; None where it has none or is damaged."""
    try:
        data = base64.b64decode(comment[len(_JOBSTATS) :].strip(), validate=True)
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(_GZIP).decompress(data, _LARGEST)
        nodes = json.loads(data)["nodes"]
        memory = [float(value) for node in nodes.values() for value in _values(node, "gpu_used_memory")]
        busy = [float(value) for node in nodes.values() for value in _values(node, "gpu_utilization")]
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # "JS1:Short" and "JS1:None" say that there is nothing; anything else broken says no more.
        return None
    if not memory or not 0 < max(memory) < 1 << 50:
        return None
    share = max(0.0, min(1.0, sum(busy) / len(busy) / 100)) if busy else None
    return GpuUse(int(max(memory) / _MIB) + 1, _active(share), JOBSTATS)


def _active(busy: Optional[float]) -> Optional[float]:
    # Slurm and jobstats count the time with any kernel on the GPU, however small.
    return None if busy is None else packaged().turns.active_at(busy)


def _values(node: Any, name: str) -> Any:
    found = node.get(name) or {}
    return found.values()
