"""A job's next time slot: what is left of its time limit, and a share by what its runs measured."""

from __future__ import annotations

import os
import time
from math import ceil
from pathlib import Path
from typing import Iterable, Mapping, Optional, Sequence, Union

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.job_record import JobRecord
from slurm_gpumem.formats.slot_state import FOLDER_VARIABLE, SlotState, read_slot_state
from slurm_gpumem.formats.verdicts import SLOT, VERDICTS
from slurm_gpumem.recovery.job_comment import JobComment, Refusal
from slurm_gpumem.slurm.gres import Held, gres_word, held_by, replaced
from slurm_gpumem.slurm.state.queue import Job
from slurm_gpumem.units import ceil_div

BEHIND_OTHERS = 1
"""The least Nice of a job from its second slot on, where priorities are weighed sums: of equal ones Slurm
takes the older job first. Elsewhere a released job is the last in its queue; Nice would keep it there."""
_EARLY_S = 10
_LEAST_CHARGE_S = 60
_ENOUGH_SAMPLES = 60
"""A minute of looks: a run that was cut short may not have come to its peak."""
_RESERVE, _LEAST_RESERVE = 0.2, 0.02
"""Above the highest peak of one run; of several less, as estimators/remembered.py has it for a script."""


def state_of_run(env: Mapping[str, str], run: int) -> Optional[SlotState]:
    """What the program says of its checkpoints in this run; None where it says nothing. As the job's user."""
    folder = env.get(FOLDER_VARIABLE)
    state = read_slot_state(Path(folder)) if folder and os.path.isabs(folder) else None
    return state if state is not None and state.run == run else None


def next_slot(
    job: Job,
    comment: JobComment,
    config: RecoveryConfig,
    decided: Mapping[int, Decision],
    records: Sequence[JobRecord],
) -> Union[Decision, Refusal]:
    """The run after a slot that ended with a checkpoint; `records` are root's, of the job's runs so far."""
    record, end = comment.record, comment.end
    assert record is not None
    assert end is not None
    if not record.slot:
        return Refusal("its owner asked for no slots")
    if record.slot < config.least_slot_s:
        return Refusal(f"its slots of {record.slot} s are shorter than {config.least_slot_s} s")
    # Its owner can write anything there. Root's records cannot be forged, where the controller can read them.
    measured = (round(one.end - one.start) for one in records if one.end and one.restarts == end.run)
    took = max(record.slot if end.used_s is None else end.used_s, *measured, 0)
    if 2 * took + _EARLY_S < record.slot:
        # A program that ends at once would circle in the queue without end.
        return Refusal(f"it ended after {took} s, long before its slot did")
    before = max((one.used_s or 0 for one in decided.values()), default=0)
    # Starting and ending a run costs the cluster something, however short it is.
    used, left = before + max(took, _LEAST_CHARGE_S), None
    if job.limit_min is not None:
        # Slurm counts whole minutes; each run takes off those that have filled up since the run before.
        left = job.limit_min - (used // 60 - before // 60)
        if left < 1 or took >= 60 * job.limit_min:
            return Refusal("its time limit is used up")
    decision = Decision(
        end.run,
        round(time.time(), 3),
        True,
        VERDICTS[SLOT].ended,
        SLOT,
        used_s=used,
        limit_min=left,
        save_s=max(record.save or 0, end.save_s or 0),
    )
    held = held_by(job.request)
    units = _measured_units(held, record, config, records) if held else None
    if held is None or units is None or units >= held.units:
        return decision
    return decision._replace(
        reason=f"{decision.reason}: {units} shards, as measured",
        request=replaced(job.request, gres_word("shard", held.gpu_type, units)),
        shards=units,
        was=held.units,
    )


def _measured_units(
    held: Held, record: CommentRecord, config: RecoveryConfig, records: Iterable[JobRecord]
) -> Optional[int]:
    """The shards that its runs needed, with a reserve; None where its share does not rest on an estimate."""
    asked = ceil_div(record.request_mib, config.shard_mib) if record.request_mib else None
    estimated = asked == held.units or (record.why == SLOT and record.was)
    # By hand, or for its activity, or given by recovery: that is no estimate of its memory.
    if held.gres != "shard" or record.estimator == "mem" or record.retry or not estimated:
        return None
    peaks = [
        one.measured.peak_mib
        for one in records
        if one.measured.peak_mib and one.measured.samples >= _ENOUGH_SAMPLES
    ]
    if not peaks:
        return None
    reserve = max(_LEAST_RESERVE, _RESERVE / len(peaks)) * max(peaks)
    return ceil_div(ceil(max(peaks) + max(reserve, max(peaks) - min(peaks))), config.shard_mib)
