"""One row of the index for each job record: the columns that `gpumem report` searches, sums and shows."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Optional, Sequence

from slurm_gpumem.accounting.schema import Row
from slurm_gpumem.accounting.types import INSTANCE, OBSERVED, SHARED, WHOLE, Device, shows_need
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import MIG, PREDICTED, GpuFigures, JobRecord
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.formats.verdicts import SLOT

_QUARTER_S = 900
_SHORT_NAME = re.compile(r"\b(RTX (?:PRO |A)?[0-9]{4}|(?:GTX |TITAN |MI|[A-Z]{1,2})[0-9]{1,4}[A-Z]{0,2})\b")
_NO_CLAIM, _NO_FIGURES = CommentRecord(), GpuFigures()


def row_of(
    record: JobRecord, *, shard_mib: int = 1024, folder: int = 0, settled_before: float = float("inf")
) -> Row:
    """The row of a record in such a folder, as if it were its job's only run."""
    measured, claim = record.measured, record.claim or _NO_CLAIM
    start, end, state, figures = record.start, record.end, record.known_state, measured.gpu
    seen = tuple(figures.values())
    mine = [figures.get(uuid, _NO_FIGURES) for uuid in record.gpus]
    devices = tuple(
        [
            _device(record.node, uuid, one.number, one.name, one.memory_mib)
            for uuid, one in zip(record.gpus, mine)
        ]
    )
    gpu = short_gpu_name(devices[0].name) if devices else ""
    gpu_mib = min([device.memory_mib for device in devices if device.memory_mib], default=None)
    gpus = len(devices) or 1
    run_s = None if end is None else end - start
    gpu_s = None if run_s is None else run_s * gpus
    alone_s = None if run_s is None else measured.time_alone(run_s)
    peak = None if measured.peak_mib is None else round(measured.peak_mib)
    request, oom = claim.request_mib, bool(record.verdict) and record.out_of_memory
    alone_by = measured.alone_by if measured.met else ""
    observed = not measured.shards and claim.mode == "observe"
    judged = shows_need(state, peak, record.notes)
    idle = record.idle() if measured.events else None
    would_s = None
    if observed and gpu_s and request and gpu_mib:
        would_s = gpu_s * shared_part(request, gpu_mib, shard_mib)
    slots = (claim.slots or 0) + (record.verdict == SLOT) if claim.slot else None
    return Row(
        job_id=record.job_id,
        restarts=record.restarts,
        start=start,
        end=end,
        gpus=gpus,
        day=_day(int(start // _QUARTER_S)),
        user=known_user(record.uid) or record.user or str(record.uid),
        model=claim.model,
        gpu=gpu or claim.gpu,
        partition=record.partition,
        sharing=SHARED
        if measured.shards
        else OBSERVED
        if observed
        else INSTANCE
        if record.mode == MIG
        else WHOLE,
        estimator=claim.estimator,
        shards=measured.shards,
        limit_mib=measured.limit_mib,
        gpu_mib=gpu_mib,
        own_peak_mib=peak,
        estimate_mib=claim.estimate_mib,
        request_mib=request,
        oom=oom,
        used_s=gpu_s,
        would_s=would_s,
        alone_s=None if alone_s is None else alone_s * gpus,
        guessed=alone_by == PREDICTED if measured.met else None,
        energy_j=measured.energy_j,
        idle_energy_j=_summed([one.idle_energy_j for one in seen]),
        idle_s=_summed([one.idle_s for one in seen]),
        sm_share=_mean([one.sm_active_share for one in mine]),
        cpus=measured.cpus,
        cpus_mean=measured.cpus_mean,
        judged=judged,
        error_pm=error_pm(claim.estimate_mib, peak) if judged else None,
        node=record.node,
        cluster=record.cluster,
        uid=record.uid,
        folder=folder,
        settled=end is not None and end < settled_before,
        own_state=state,
        fingerprint=claim.fingerprint,
        batch=claim.batch,
        optimizer=claim.optimizer,
        precision=claim.precision,
        variant=claim.variant,
        verdict=record.verdict,
        why=claim.why if record.restarts else "",
        exit_code=record.exit_code,
        signal=record.signal,
        samples=measured.samples,
        mean_mib=None if measured.mean_mib is None else round(measured.mean_mib),
        gpu_sm=_mean([_activity(one) for one in mine]),
        alone_by=alone_by,
        alone_sm=_alone_sm([one.alone_sm for one in seen]),
        cpus_high=measured.cpus_high,
        slots=slots,
        array_job=measured.array_job,
        array_task=measured.array_task,
        said=claim.said,
        parts=claim.parts,
        devices=devices,
        met=measured.met,
        hints=record.hints if idle is None else (*record.hints, idle.kind),
        notes=record.notes,
    )


def error_pm(estimate: Optional[int], peak: Optional[int]) -> Optional[int]:
    """|error| in thousandths of the peak; huge ones are capped."""
    return min(1_000_000, round(abs(estimate / peak - 1) * 1000)) if estimate and peak else None


@lru_cache(maxsize=4096)
def known_user(uid: int) -> str:
    """The name that the system has for a number, "" without one: a record could claim any name."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def shared_part(request_mib: int, gpu_mib: int, shard_mib: int) -> float:
    """The part of a GPU that a request takes, in whole shards."""
    return min(1.0, -(-request_mib // shard_mib) / max(1, gpu_mib // shard_mib))


@lru_cache(maxsize=1024)
def short_gpu_name(name: str) -> str:
    """ "a100" of "NVIDIA A100-SXM4-40GB", "rtx 4090" of "NVIDIA GeForce RTX 4090"; "" of others.

    A MIG instance has its profile behind it: "h200 1g.18gb".
    """
    match, profile = _SHORT_NAME.search(name), profile_name(name)
    return " ".join(filter(None, [match[1].lower() if match else "", profile]))


def _summed(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    if len(values) == 1:
        return values[0]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _alone_sm(values: Sequence[Optional[float]]) -> Optional[float]:
    if not values or None in values:
        return None
    return round(_mean(values) or 0.0, 4)


def _activity(figures: GpuFigures) -> Optional[float]:
    """The whole GPU's. Without SM counters the time with any kernel is the next best that NVML has."""
    return figures.gpu_utilization if figures.gpu_sm_active is None else figures.gpu_sm_active


@lru_cache(maxsize=16_384)
def _device(node: str, uuid: str, number: Optional[int], name: str, mib: Optional[float]) -> Device:
    """A GPU as it is stored: the same for each job that was there."""
    return Device(node, uuid, number, name, None if mib is None else round(mib))


@lru_cache(maxsize=4096)
def _day(quarter: int) -> int:
    """Of a quarter of an hour: no time zone changes its offset within one."""
    local = time.localtime(quarter * _QUARTER_S)
    return (quarter * _QUARTER_S + local.tm_gmtoff) // 86_400
