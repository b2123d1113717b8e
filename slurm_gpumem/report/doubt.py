"""The doubt in a request, for people and programs: how much it is, at other coverages, what removes it."""

from __future__ import annotations

from typing import Any, Dict, List

from slurm_gpumem.estimators.coverage import EXPLAINED, remedies, request_at
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.estimators.whatif import Alternatives, Jump
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, format_mib


def doubt_lines(estimate: Estimate, gpu: Gpu, other: Alternatives, shard_mib: int) -> List[str]:
    """What of the request is doubt; nothing where the estimator knows one request only."""
    lines: List[str] = []
    if other.jump is not None:
        lines.append(_jump_line(other.jump, estimate))
    if not estimate.requests:
        return lines
    doubt = estimate.sure_mib - estimate.peak_mib
    share = doubt / max(1, estimate.sure_mib)
    lines.append(f"doubt: {doubt:,} MiB of the request ({share * 100:.0f} %); the request would be")
    for coverage in EXPLAINED:
        asked = request_at(estimate.requests, coverage)
        shards = count(ceil_div(asked, shard_mib), "shard")
        more = ", more than the GPU has" if asked > gpu.usable_mib else ""
        lines.append(f"       {asked:,} MiB = {shards} for {coverage * 100:.3g} % of such jobs{more}")
    removed = remedies(estimate, gpu)
    lines += [f"       less doubt: {'; '.join(removed)}"] if removed else []
    return lines


def doubt_json(estimate: Estimate, gpu: Gpu) -> Dict[str, Any]:
    """The same for --json."""
    if not estimate.requests:
        return {"group": None, "doubt_mib": None, "requests": {}, "less_doubt": []}
    return {
        "group": estimate.group,
        "doubt_mib": estimate.sure_mib - estimate.peak_mib,
        "requests": {f"{coverage:g}": request_at(estimate.requests, coverage) for coverage in EXPLAINED},
        "less_doubt": list(remedies(estimate, gpu)),
    }


def _jump_line(jump: Jump, estimate: Estimate) -> str:
    now = estimate.job.batch_size
    return (
        f"jump: from batch {jump.batch} to {now} the peak grows by {format_mib(jump.grows_mib)}, "
        f"{format_mib(jump.part_mib)} of it {_CAUSES.get(jump.part, jump.part)}"
    )


_CAUSES: Dict[str, str] = {
    "workspace": "workspace: cuDNN takes another algorithm for a convolution",
    "fragmentation": "fragmentation: blocks that just fitted into freed ones no longer do",
    "activations": "activations",
}
