"""What a trace says that a rank holds, for comparison with real ranks."""

from __future__ import annotations

from typing import Dict, Tuple

from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, PARAMETER, Site, Trace


def figures(trace: Trace) -> Dict[str, int]:
    """Bytes after the last step, and the most at a time in it; without what only a GPU has."""
    last = max(phase.step for phase in trace.phases)
    live: Dict[int, Tuple[int, Site]] = {}
    total = most = 0
    for event, block, site in trace.allocations():
        if site is not None:
            on_gpu_only = site.operator in (NCCL, "cublas", "cublaslt") or not site.bytes
            live[block] = (0 if on_gpu_only else site.bytes_at(trace.job.batch), site)
            total += live[block][0]
        else:
            total -= live.pop(block)[0]
        if trace.phase_of(event).step == last:
            most = max(most, total)
    found = {"weights": 0, "gradients": 0, "optimizer": 0, "buckets": 0, "peak": most}
    for size, site in live.values():
        if site.operator == PARAMETER:
            found["weights"] += size
        elif site.operator == BUCKET:
            found["buckets"] += size
        elif site.category in found:
            found[site.category] += size
    return found
