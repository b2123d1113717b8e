"""What a rank's trace says that it holds, for comparison with real ranks."""

from __future__ import annotations

from typing import Dict, Tuple

from slurm_gpumem.estimators.ranks import rank_trace
from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, PARAMETER, Site, Trace
from slurm_gpumem.summaries.types import ModelSummary

POOL = "fsdp::all_gather"


def of_rank(summary: ModelSummary, strategy: str, ranks: int) -> Dict[str, int]:
    """Bytes after the last step, and the most at a time in it; without what only a GPU has."""
    assert summary.trace is not None
    return figures(rank_trace(summary.trace, summary.layers, strategy, ranks)[0])


def figures(trace: Trace) -> Dict[str, int]:
    """The same of any trace."""
    last = max(phase.step for phase in trace.phases)
    live: Dict[int, Tuple[int, Site]] = {}
    total = most = 0
    for event, block, site in trace.allocations():
        if site is not None:
            on_gpu_only = site.operator in (NCCL, "cublas", "cublaslt", POOL) or not site.bytes
            live[block] = (0 if on_gpu_only else site.bytes_at(trace.job.batch), site)
            total += live[block][0]
        else:
            total -= live.pop(block)[0]
        if trace.phase_of(event).step == last:
            most = max(most, total)
    found = {"weights": 0, "gradients": 0, "optimizer": 0, "peak": most}
    for size, site in live.values():
        if site.operator == PARAMETER:
            found["weights"] += size
        elif site.operator == BUCKET:
            found["buckets"] = found.get("buckets", 0) + size
        elif site.category in found:
            found[site.category] += size
    pools = [site.bytes_at(trace.job.batch) for site in trace.sites if site.operator == POOL]
    return {**found, "pool": sum(pools)}
