"""The MIG instance for a job: the smallest profile in reach that holds its request and is fast enough."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.submission.share.request import GpuKind, GpuRequest, Need
from slurm_gpumem.units import format_mib

Offer = Tuple[GpuKind, Need]
"""One kind of instance, and what the job needs there."""


def smallest_instance(
    kinds: Sequence[GpuKind], needs: Sequence[Need], *, share_mib: Optional[int]
) -> Optional[GpuRequest]:
    """The request for an instance; None where there is none, or where the job is better off elsewhere.

    `share_mib` is what a share of a whole GPU would take, None where there is none to have: the smaller
    one is asked for. An instance that holds the peak but not the whole request, or that is slower than
    accepted, is only taken where no whole GPU is in reach.
    """
    offers = [(kind, need) for kind, need in zip(kinds, needs) if kind.profile and _holds_peak(kind, need)]
    good = [(kind, need) for kind, need in offers if _memory(kind) >= need.request_mib and not need.too_slow]
    if good:
        kind, _ = min(good, key=_size)
        if share_mib is not None and share_mib <= _memory(kind):
            return None
        return _request(kind, _reason(kind, kinds, needs))
    if not offers or any(not kind.profile for kind in kinds):
        return None
    kind, need = max(offers, key=_size)
    return _request(kind, f"{kind.gpu_type}, the largest here; {_shortcoming(kind, need)}")


def sizes_beside_instances(gpu_types: Iterable[str]) -> Dict[str, int]:
    """MiB of a GPU or MIG instance by its type; empty where none of them is an instance.

    Types whose memory is not known are left out.
    """
    types = list(gpu_types)
    if not any(profile_name(kind) for kind in types):
        return {}
    found = {kind: closest_gpu(kind, None) for kind in types}
    return {kind: gpu.usable_mib for kind, gpu in found.items() if gpu.entry}


def _reason(kind: GpuKind, kinds: Sequence[GpuKind], needs: Sequence[Need]) -> str:
    slow: List[Offer] = [
        (other, need)
        for other, need in zip(kinds, needs)
        if other.profile and need.too_slow and _memory(other) >= need.request_mib
    ]
    smaller = [other.label for other, need in slow if _size((other, need)) < _size((kind, need))]
    if smaller:
        return f"{kind.gpu_type}; {', '.join(smaller)} would hold it but be too slow"
    others = any(other.profile and other is not kind for other in kinds)
    return (
        f"{kind.gpu_type}, the smallest MIG profile that holds it"
        if others
        else f"{kind.gpu_type}, a MIG profile"
    )


def _shortcoming(kind: GpuKind, need: Need) -> str:
    if need.request_mib > _memory(kind):
        return f"its peak fits, a margin up to {format_mib(need.request_mib)} does not"
    return "it is slower there than accepted"


def _request(kind: GpuKind, reason: str) -> GpuRequest:
    gres = gres_word("gpu", kind.gpu_type, 1)
    return GpuRequest(gres, 0, 0, kind.gpu_type, False, reason, instance_mib=_memory(kind))


def _holds_peak(kind: GpuKind, need: Need) -> bool:
    return kind.memory_mib is not None and need.peak_mib <= kind.memory_mib


def _memory(kind: GpuKind) -> int:
    return kind.memory_mib or 0


def _size(offer: Offer) -> Tuple[int, int, str]:
    """Less memory is smaller, then fewer multiprocessors."""
    return _memory(offer[0]), offer[0].sms, offer[0].label
