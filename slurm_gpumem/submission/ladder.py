"""The recovery ladder: what a job that ran out of GPU memory asks for next.

Steps are "whole-gpu" or a margin like "+25%". Where the job stands is read from its own request: one that
has a whole GPU is at the end, whatever its comment says, and every step asks for more than the last.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.config.ladder import Step
from slurm_gpumem.slurm.gres import Held
from slurm_gpumem.submission.request import gres_word
from slurm_gpumem.units import ceil_div


class Next(NamedTuple):
    """What the next run asks for."""

    gres: str
    """The entry for --gres: "shard:a100:40", "gpu:1"."""
    units: int
    """0 for gpu:1."""
    whole: bool


def next_request(
    ladder: Sequence[Step],
    taken: int,
    held: Held,
    units_per_gpu: Mapping[Optional[str], int],
    *,
    need_units: int,
    gpu_keeps_off_shards: bool,
) -> Optional[Next]:
    """What to ask for after `taken` steps; None at the ladder's end.

    `units_per_gpu` are the kinds of GPUs in reach. `need_units` is what the failed run is known to have
    needed. `gpu_keeps_off_shards` as `slurm.nodes.WHOLE_GPU_BESIDE_SHARDS` says.
    """
    kinds = {
        kind: units for kind, units in units_per_gpu.items() if held.gpu_type in (None, kind) and units > 0
    }
    largest = max(kinds.values(), default=0)
    if held.gres == "gpu" or taken >= len(ladder) or (largest and held.units >= largest):
        return None
    step = ladder[taken]
    if step.margin_percent is not None:
        # It was stopped at what it had, so it needs more than that, however little was measured.
        wanted = ceil_div(max(held.units, need_units) * (100 + step.margin_percent), 100)
        if wanted < largest:
            return Next(gres_word(held.gres, held.gpu_type, wanted), wanted, False)
    if gpu_keeps_off_shards or not largest:
        return Next(gres_word("gpu", _type_for(held, kinds), 1), 0, True)
    # Without a type it cannot be given one now; the most that any GPU has is a whole one anyway.
    return Next(gres_word(held.gres, held.gpu_type, largest), largest, True)


def _type_for(held: Held, kinds: Mapping[Optional[str], int]) -> Optional[str]:
    """The type to name for a whole GPU: the user's, or the largest where a smaller one gives no more."""
    if held.gpu_type is not None or all(units > held.units for units in kinds.values()):
        return held.gpu_type
    return max(kinds, key=lambda kind: kinds[kind])
