"""What the next run of a job could do better, in one line, from what this one measured."""

from __future__ import annotations

from typing import List, Optional

from slurm_gpumem.accounting.types import INSTANCE, JobRow
from slurm_gpumem.formats.remembered import CpuRun
from slurm_gpumem.submission.share.host import cpus_wanted
from slurm_gpumem.text import count
from slurm_gpumem.units import ceil_div, percent

_RESERVE = 0.95
"""A batch is advised up to this part of what was granted: activations grow with it, but not quite evenly."""
_IDLE, _IDLE_AFTER_S = 0.1, 600.0
_FIXED_PARTS = ("weights", "gradients", "optimizer", "context")
"""Parts of an estimate that do not grow with the batch."""


def advice(row: JobRow, shard_mib: int) -> str:
    """ "12 shards would have done; batch 192 would still fit"; "" when there is nothing to say."""
    if row.end is None or not row.peak_mib:
        return ""
    said: List[str] = []
    if row.ooms and row.state != "COMPLETED":
        said += _after_oom(row)
    else:
        said += _sizes(row, shard_mib)
    said += _cpus(row)
    if row.sm_share is not None and row.sm_share < _IDLE and (row.run_s or 0) >= _IDLE_AFTER_S:
        said.append(f"the GPU waited for it most of the time ({percent(row.sm_share)} SM activity)")
    return "; ".join(said)


def largest_batch(row: JobRow, room_mib: float) -> Optional[int]:
    """The largest batch that `room_mib` holds, by the measured peak and the parts that do not grow."""
    if not row.parts or not row.batch or not row.peak_mib:
        return None
    fixed = sum(row.parts.get(name, 0) for name in _FIXED_PARTS)
    growing = row.peak_mib - fixed
    if growing <= 0 or room_mib <= fixed:
        return None
    return _handy(int((room_mib - fixed) / growing * row.batch))


def _sizes(row: JobRow, shard_mib: int) -> List[str]:
    assert row.peak_mib is not None
    said: List[str] = []
    enough = ceil_div(row.peak_mib, shard_mib)
    if row.shards and row.limit_mib and row.peak_mib <= row.limit_mib:
        if _more_than_memory(row, shard_mib):
            said.append(f"memory alone takes {enough} of its {count(row.shards, 'shard')}")
        elif enough < row.shards:
            said.append(f"{count(enough, 'shard')} would have done")
        else:
            said.append(f"it needed its {count(row.shards, 'shard')}")
    elif row.shards and row.limit_mib:
        said.append(f"it took more than its {count(row.shards, 'shard')}: it needs {enough}")
    elif row.sharing == INSTANCE:
        said += [] if enough * shard_mib < (row.gpu_memory_mib or 0) else ["it needed its whole MIG instance"]
    elif row.gpu_memory_mib:
        of = row.gpu_memory_mib // shard_mib
        said.append(
            f"{count(enough, 'shard')} of the GPU's {of} would have done"
            if enough < of
            else "it needed the whole GPU"
        )
    granted = row.granted_mib
    batch = largest_batch(row, granted * _RESERVE) if granted and row.judged else None
    if batch is not None and row.batch is not None and batch > row.batch:
        said.append(f"batch {batch} would still fit")
    return said


def _more_than_memory(row: JobRow, shard_mib: int) -> bool:
    """Whether it was submitted with more shards than for its memory: its activity takes its part, too.

    After running out of memory it has more for another reason.
    """
    asked = ceil_div(row.request_mib, shard_mib) if row.request_mib else None
    return asked is not None and not row.ooms and row.shards is not None and asked < row.shards


def _cpus(row: JobRow) -> List[str]:
    if not row.cpus or row.cpus_high is None or not row.judged:
        return []
    enough = cpus_wanted([CpuRun(row.cpus_high, row.cpus)])
    return [f"{enough} of its {row.cpus} CPUs would have done"] if enough and enough < row.cpus else []


def _after_oom(row: JobRow) -> List[str]:
    room = row.oom_limit_mib
    said = [f"it needs more than {room / 1024:.0f} GiB" if room else "it needs more memory"]
    # What it wanted is not known: its peak is where it was stopped. The estimate says what grows.
    if room and row.parts and row.batch:
        fixed = sum(row.parts.get(name, 0) for name in _FIXED_PARTS)
        growing = max(room, sum(row.parts.values())) - fixed
        batch = (
            _handy(int((room * _RESERVE - fixed) / growing * row.batch))
            if growing > 0 and room > fixed
            else 0
        )
        if 0 < batch < row.batch:
            said.append(f"batch {batch} may fit")
    return said


def _handy(batch: int) -> int:
    """Rounded down to what people take: 207 → 192, 13 → 12."""
    step = 1
    while step * 8 <= batch:
        step *= 2
    return batch // step * step
