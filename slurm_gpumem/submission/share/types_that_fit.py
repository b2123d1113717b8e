"""A partition with several types of GPUs: those that hold the job, in terms that Slurm understands.

One type is named in --gres. Several are a --constraint of node features, or those of the job's partitions
that have no other GPUs; Slurm then takes the nodes with the least weight first. Where neither tells them from
the types that are too small, the one of the least weight, then of the least memory, is named.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.slurm.state.nodes import GpuNodes
from slurm_gpumem.submission.share.request import GpuKind, Need

_TYPES_NAMED = 3


class Sides(NamedTuple):
    """The whole GPUs in reach by whether they hold the job, the smallest first."""

    holding: Tuple[GpuKind, ...]
    too_small: Tuple[GpuKind, ...]

    def __str__(self) -> str:
        """ "fits a100 and up, not v100"; empty where it fits everywhere or nowhere."""
        if not self.holding or not self.too_small:
            return ""
        fits = self.holding[0].label + (" and up" if len(self.holding) > 1 else " only")
        small = [kind.label for kind in self.too_small]
        more = f" and {len(small) - _TYPES_NAMED} more" if len(small) > _TYPES_NAMED else ""
        return f"fits {fits}, not {', '.join(small[:_TYPES_NAMED])}{more}"


class Chosen(NamedTuple):
    """What keeps a job to the GPUs that hold it: one of the three is set."""

    gpu_type: Optional[str] = None
    constraint: str = ""
    partition: str = ""


def sides(kinds: Sequence[GpuKind], needs: Sequence[Need]) -> Sides:
    """The whole GPUs that hold the job's request, or its peak where none holds that; and the others."""
    whole = [(kind, need) for kind, need in zip(kinds, needs) if not kind.profile]
    by_request = [kind for kind, need in whole if _holds(kind, need.request_mib)]
    by_peak = [kind for kind, need in whole if _holds(kind, need.peak_mib)]
    holding = by_request or by_peak
    small = [kind for kind, _ in whole if kind not in holding]
    return Sides(tuple(sorted(holding, key=_memory)), tuple(sorted(small, key=_memory)))


def narrow(
    found: Sides, groups: Sequence[GpuNodes], partitions: Sequence[str], *, own_constraint: bool
) -> Optional[Chosen]:
    """How to ask for the GPUs that hold the job and no others; None where nothing need be said, or can be."""
    if not found.holding or not found.too_small:
        return None
    types = {kind.gpu_type for kind in found.holding}
    inside = [group for group in groups if group.gpu_type in types]
    outside = [group for group in groups if group.gpu_type not in types]
    if len(types) > 1:
        features = None if own_constraint else _features(inside, outside)
        if features:
            return Chosen(constraint="|".join(features))
        left = [name for name in partitions if not any(name in group.partitions for group in outside)]
        if left and len(left) < len(partitions):
            return Chosen(partition=",".join(left))
    weight = {group.gpu_type: group.weight for group in sorted(inside, key=lambda group: -group.weight)}
    named = [kind for kind in found.holding if kind.gpu_type]
    if not named or {kind.gpu_type for kind in found.too_small} & types:
        return None
    return Chosen(min(named, key=lambda kind: (weight.get(kind.gpu_type, 1), _memory(kind))).gpu_type)


def _features(inside: Sequence[GpuNodes], outside: Sequence[GpuNodes]) -> Optional[List[str]]:
    """A feature for each type inside that no node outside has, the type's own name first; None without."""
    taken: Set[str] = {feature for group in outside for feature in group.features}
    chosen: Dict[str, None] = {}
    for group in inside:
        free = [feature for feature in group.features if feature not in taken]
        if not free:
            return None
        named = [feature for feature in free if feature == group.gpu_type]
        already = [feature for feature in free if feature in chosen]
        chosen[(already or named or free)[0]] = None
    return sorted(chosen)


def _holds(kind: GpuKind, mib: int) -> bool:
    return kind.memory_mib is None or mib <= kind.memory_mib


def _memory(kind: GpuKind) -> int:
    return kind.memory_mib or 0
