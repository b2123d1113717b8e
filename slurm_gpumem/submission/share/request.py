"""From a job's need to what is asked of Slurm: a part of one GPU, or all of it.

`kinds` are the GPUs a job may land on; `needs` says, for each, what the job needs there
(GPU types differ in context and workspace). What is asked holds on every kind that can take it.
"""

from __future__ import annotations

from math import ceil
from typing import List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.units import ceil_div

_HAIR = 1e-9
_WASTE = 0.1
"""Part of a GPU that a request may take beyond the need there, for the job to go to any type."""


class GpuKind(NamedTuple):
    """One kind of GPU that a job may land on, and what of its node belongs to one such GPU."""

    gpu_type: Optional[str]
    """Slurm's type; None where the site gave none."""
    units: int
    """Shards (or mps units) that one GPU is divided into; 0 when it is not shared."""
    memory_mib: Optional[int]
    """Its memory as far as jobs may have it; None when nobody knows."""
    gpus: int
    """How many of them are in reach."""
    cpus_per_gpu: float
    threads_per_core: int
    host_mib_per_gpu: int
    profile: str = ""
    """The MIG profile of an instance; empty for a whole GPU."""
    sms: int = 0
    """Multiprocessors; 0 where nobody knows."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.gpu_type or "GPU"

    def is_type(self, gpu_type: Optional[str]) -> bool:
        """Whether a request for that type may land on it; None: for any."""
        return gpu_type is None or self.gpu_type == gpu_type


class GpuRequest(NamedTuple):
    """What is asked of Slurm for one job."""

    gres: str
    """The value of --gres: "shard:13", "shard:a100:13", "mps:30", "gpu:1"."""
    units: int
    """Shards (or mps units); 0 for a whole GPU."""
    per_gpu: int
    """Shards (or mps units) that one GPU of that kind has."""
    gpu_type: Optional[str]
    whole_gpu: bool
    reason: str
    """Why it is what it is, for the human line."""
    memory_units: int = 0
    """What memory alone would ask for; 0 where nothing was worked out."""
    activity_units: int = 0
    """What the job's activity alone would ask for; 0 where it does not count."""
    instance_mib: int = 0
    """Memory of the MIG instance that is asked for; 0 where none is."""
    constraint: str = ""
    """The value of --constraint that keeps it to GPUs that hold the job; empty where none does."""
    partition: str = ""
    """The value of --partition that does; empty where the job's own stays."""
    narrowed: bool = False
    """Whether it leaves out GPUs in reach that do not hold the job."""


class Need(NamedTuple):
    """A job's GPU memory on one kind of GPU, and its share of that GPU's time."""

    peak_mib: int
    request_mib: int
    activity: float = 0.0
    """Share of the GPU (0 to 1) that keeps neighbours and job within the accepted slowdown; 0: not asked."""
    too_slow: bool = False
    """Whether a MIG instance has too few multiprocessors for the accepted slowdown."""

    def times(self, processes: int) -> Need:
        """The memory of several such processes."""
        return self._replace(peak_mib=self.peak_mib * processes, request_mib=self.request_mib * processes)


Pairs = Sequence[Tuple[GpuKind, Need]]


def largest_kind(kinds: Sequence[GpuKind]) -> Optional[GpuKind]:
    """The kind with the most memory, of those whose memory is known."""
    return max(
        (kind for kind in kinds if kind.memory_mib), key=lambda kind: kind.memory_mib or 0, default=None
    )


def fits_somewhere(kinds: Sequence[GpuKind], needs: Sequence[Need]) -> bool:
    """Whether at least one kind holds the job's peak; a kind of unknown memory is given the benefit."""
    return any(_fits(kind, need) for kind, need in zip(kinds, needs))


def share_gpu(
    kinds: Sequence[GpuKind], needs: Sequence[Need], policy: SharingPolicy, *, gpu_type: Optional[str]
) -> GpuRequest:
    """Part of one GPU: the most units that any fitting kind needs, at most what one GPU has.

    `gpu_type` is the type the user asked for (then `kinds` holds only it). The caller has made
    sure that the job fits somewhere and that a kind is divided.
    """
    fitting = [(kind, need) for kind, need in zip(kinds, needs) if kind.units and _fits(kind, need)]
    fitting = fitting or [(kind, need) for kind, need in zip(kinds, needs) if kind.units]

    def counted(pairs: Pairs) -> Tuple[int, List[GpuKind], Optional[str]]:
        if policy.gres == "mps":
            return _mps_units(kinds, pairs, gpu_type)
        return _shards(pairs, policy.shard_mib, gpu_type)

    count, takers, bound_to = counted(fitting)
    by_memory = [(kind, need._replace(activity=0.0)) for kind, need in fitting if kind.is_type(bound_to)]
    kind = max(takers, key=lambda kind: kind.gpus)
    activity = max((_activity_units(kind, need) for kind, need in fitting if kind in takers), default=0)
    return GpuRequest(
        gres=gres_word(policy.gres, bound_to, count),
        units=count,
        per_gpu=kind.units,
        gpu_type=bound_to,
        whole_gpu=False,
        reason=_part_reason(count, takers, policy.gres),
        memory_units=counted(by_memory)[0],
        activity_units=activity,
    )


def needs_whole_gpu(kinds: Sequence[GpuKind], needs: Sequence[Need]) -> bool:
    """Whether its activity leaves no room for others on any divided kind that holds it."""
    fitting = [need for kind, need in zip(kinds, needs) if kind.units and _fits(kind, need)]
    return bool(fitting) and all(need.activity >= 1 for need in fitting)


def whole_gpu(
    kinds: Sequence[GpuKind],
    needs: Sequence[Need],
    policy: SharingPolicy,
    *,
    gpu_type: Optional[str],
    gpu_keeps_off_shards: bool,
    reason: str,
) -> GpuRequest:
    """A GPU for the job alone: gpu:1, or all shards of one where Slurm would double-book gpu:1."""
    divided = [(kind, need) for kind, need in zip(kinds, needs) if kind.units]
    if gpu_keeps_off_shards or not divided or policy.gres != "shard":
        gpu_type = gpu_type or type_of_whole(kinds, needs)
        return GpuRequest(gres_word("gpu", gpu_type, 1), 0, 0, gpu_type, True, reason)
    fitting = [kind for kind, need in divided if _fits(kind, need)] or [kind for kind, _ in divided]
    # With its type: all shards of a small GPU would be only a part of a larger one.
    kind = min(fitting, key=lambda kind: kind.units)
    return GpuRequest(
        gres_word("shard", kind.gpu_type, kind.units), kind.units, kind.units, kind.gpu_type, True, reason
    )


def type_of_whole(kinds: Sequence[GpuKind], needs: Sequence[Need]) -> Optional[str]:
    """The type of a whole GPU beside MIG instances, which gpu:1 would take as well; None without any.

    The smallest that holds the job, else the largest.
    """
    whole = [(kind, need) for kind, need in zip(kinds, needs) if not kind.profile]
    if len(whole) == len(kinds) or not whole:
        return None
    holding = [kind for kind, need in whole if _fits(kind, need)]
    if holding:
        return min(holding, key=lambda kind: kind.memory_mib or 0).gpu_type
    return max((kind for kind, _ in whole), key=lambda kind: kind.memory_mib or 0).gpu_type


def _fits(kind: GpuKind, need: Need) -> bool:
    return kind.memory_mib is None or need.peak_mib <= kind.memory_mib


def _shards(
    fitting: Pairs, shard_mib: int, gpu_type: Optional[str]
) -> Tuple[int, List[GpuKind], Optional[str]]:
    """As many as the job needs on each kind; of the one type where that would waste much of another's."""
    # A shard job lives on one GPU; asking for more than one has would pend forever.
    counts = {
        kind: max(1, min(kind.units, max(ceil_div(need.request_mib, shard_mib), _activity_units(kind, need))))
        for kind, need in fitting
    }
    count = max(counts.values())
    filled = {kind for kind, need in fitting if need.activity >= 1}
    wasted = [
        kind
        for kind, own in counts.items()
        if kind.gpu_type
        and (
            min(count, kind.units) - own > _WASTE * kind.units
            or (kind in filled and len(filled) < len(counts))
        )
    ]
    if not wasted:
        return count, [kind for kind in counts if kind.units >= count], gpu_type
    # The same number is a small part of a large GPU and all of a small one: Slurm has one number for both.
    chosen = min(counts, key=lambda kind: (counts[kind] / kind.units, -kind.gpus)).gpu_type
    of_type = {kind: own for kind, own in counts.items() if kind.gpu_type == chosen}
    count = max(of_type.values())
    return count, [kind for kind in of_type if kind.units >= count], chosen


def _mps_units(
    kinds: Sequence[GpuKind], fitting: Pairs, gpu_type: Optional[str]
) -> Tuple[int, List[GpuKind], Optional[str]]:
    """An mps unit is a share of whatever GPU it lands on, so its memory differs with the kind."""
    counts = {
        kind: max(
            1,
            min(ceil_div(need.request_mib * kind.units, kind.memory_mib), kind.units),
            _activity_units(kind, need),
        )
        for kind, need in fitting
        if kind.memory_mib
    }
    count = max(counts.values())
    enough = [kind for kind in kinds if kind.units >= count]
    if all(kind in counts for kind in enough):
        return count, [kind for kind in enough if counts[kind] <= count], gpu_type
    # The same number of units would be too little memory on a smaller kind: name the kind.
    kind = max(counts, key=lambda kind: kind.gpus)
    return counts[kind], [kind], kind.gpu_type


def _activity_units(kind: GpuKind, need: Need) -> int:
    """The units that a job's activity takes on one kind; a hair under a whole number is that number."""
    return min(kind.units, max(0, ceil(need.activity * kind.units - _HAIR)))


def _part_reason(count: int, takers: Sequence[GpuKind], gres: str) -> str:
    unit = "mps units" if gres == "mps" else "shards"
    sizes = {kind.label: kind.units for kind in takers}
    if len(sizes) == 1:
        label, units = next(iter(sizes.items()))
        return f"{count} of {units} {unit} on {with_article(label)}"
    listed = ", ".join(f"{label}: {units}" for label, units in sizes.items())
    return f"{count} {unit} of one GPU ({listed})"


def with_article(name: str) -> str:
    """ "an a100", "a v100": by sound where it is a letter and a number."""
    vowels = "aefhilmnorsx" if name[1:2].isdigit() else "aeiou"
    return f"{'an' if name[:1].lower() in vowels else 'a'} {name}"
