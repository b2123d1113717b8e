"""One row of the index for each job record: the columns that `gpumem report` searches, sums and shows."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.accounting.types import INSTANCE, OBSERVED, SHARED, WHOLE
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.formats.job_record import MIG, PREDICTED, GpuFigures, JobRecord
from slurm_gpumem.formats.remembered import Recipe
from slurm_gpumem.formats.verdicts import SLOT

LEAST_SAMPLES = 3
"""A run with fewer samples may have had its peak missed."""
_QUARTER_S = 900
_SEPARATOR = "\x1f"
_SHORT_NAME = re.compile(r"\b(RTX (?:PRO |A)?[0-9]{4}|(?:GTX |TITAN |MI|[A-Z]{1,2})[0-9]{1,4}[A-Z]{0,2})\b")
_NO_CLAIM, _NO_FIGURES = CommentRecord(), GpuFigures()

_Device = Tuple[str, Optional[int], str, Optional[int]]
"""UUID, number on the node, name, MiB."""


class Rest(NamedTuple):
    """What nobody searches or sums by; one text in the index."""

    parts: str
    mode: str
    verdict: str
    hints: str
    notes: str
    met: str
    exit_code: str
    signal: str
    samples: str
    gpu_sm: str
    mean_mib: str
    why: str
    """Of a run that recovery started: why the run before it ended."""
    alone_by: str
    """Where `alone_s` is known from."""
    alone_sm: str
    """Its SM activity while it had its GPU to itself."""
    cpus_high: str
    """CPUs that it kept busy at most in nearly all of its busy time."""
    said: str
    """How much slower its owner was told it runs while sharing."""
    slots: str
    """Time slots that ended with a checkpoint, up to this run's end."""


_RESTS = len(Rest._fields)


class Run(NamedTuple):
    """One run of a job on one node: the columns that come from its record, in the table's order."""

    cluster: str
    job_id: int
    restarts: int
    node: str
    uid: int
    user: str
    partition: str
    model: str
    recipe: str
    """A Recipe, joined."""
    estimator: str
    gpu: str
    gpu_mib: Optional[int]
    sharing: str
    shards: Optional[int]
    limit_mib: Optional[int]
    estimate_mib: Optional[int]
    request_mib: Optional[int]
    own_peak_mib: Optional[int]
    start: float
    end: Optional[float]
    own_state: str
    oom: int
    sm_share: Optional[float]
    energy_j: Optional[float]
    idle_energy_j: Optional[float]
    """Its part of the energy while none of its GPU's jobs held memory."""
    idle_s: Optional[float]
    """GPU-seconds in which it held memory and the GPU did nothing."""
    alone_s: Optional[float]
    """GPU-seconds that it would have taken without neighbours; None where that is not known."""
    guessed: Optional[int]
    """Of a run that shared its GPU: 1 where that rests on predicted activity."""
    cpus: Optional[int]
    """CPUs that it held on this node."""
    cpus_mean: Optional[float]
    """CPUs that it kept busy, over all of its time."""
    gpus: int
    day: int
    """The local day of its start, counted from 1970."""
    used_s: Optional[float]
    """GPU-seconds, until it is known whom it shared them with."""
    would_s: Optional[float]
    """GPU-seconds of a job that was only observed, had it shared by its request."""
    array_job: Optional[int]
    array_task: Optional[int]
    rest: str
    """A Rest, joined."""
    devices: Tuple[_Device, ...]
    """The table holds their numbers in the table of devices."""


def recipe_of(text: str) -> Recipe:
    """A recipe from the index's text for it."""
    return Recipe(*text.split(_SEPARATOR)) if text.count(_SEPARATOR) == 4 else Recipe("", "", "", "", "")


def rest_of(text: str) -> Rest:
    """The rest from the index's text for it."""
    return Rest(*text.split(_SEPARATOR)) if text.count(_SEPARATOR) == _RESTS - 1 else Rest(*[""] * _RESTS)


def run_from(record: JobRecord, *, shard_mib: int = 1024) -> Run:
    """The row of a record.

    A first index calls it a million times: hence everything taken out of the record at once, and one long
    tuple in the columns' order.
    """
    (
        job_id, restarts, uid, node, start, cluster, partition, user, mode, gpus, claim,
        measured, end, exit_code, signal, _, hints, verdict, notes,
    ) = record  # fmt: skip
    (
        shards, _, limit, peak, mean, energy, figures, met, samples, _, array_job, array_task,
        cpus, cpus_mean, cpus_high,
    ) = measured  # fmt: skip
    claimed = claim or _NO_CLAIM
    request = claimed.request_mib
    devices, sm_share, gpu_sm, gpu, gpu_mib = _gpus(gpus, figures)
    observed = not shards and claimed.mode == "observe"
    day = _day(int(start // _QUARTER_S))
    gpu_s = None if end is None else (end - start) * (len(devices) or 1)
    basis = measured.alone_by
    alone = None if end is None else measured.time_alone(end - start)
    idle, idle_energy = _summed(figures, "idle_s"), _summed(figures, "idle_energy_j")
    rest = (
        claimed.parts,
        mode,
        verdict,
        " ".join(hints) if hints else "",
        "\n".join(notes) if notes else "",
        " ".join(map(str, met)) if met else "",
        "" if exit_code is None else str(exit_code),
        "" if signal is None else str(signal),
        str(samples),
        "" if gpu_sm is None else str(gpu_sm),
        "" if mean is None else str(round(mean)),
        claimed.why if restarts else "",
        basis,
        _alone_sm(figures),
        "" if cpus_high is None else str(cpus_high),
        claimed.said,
        str((claimed.slots or 0) + (verdict == SLOT)) if claimed.slot else "",
    )
    return Run(
        cluster,
        job_id,
        restarts,
        node,
        uid,
        known_user(uid) or user or str(uid),
        partition,
        claimed.model,
        _recipe_text(
            claimed.fingerprint, claimed.batch, claimed.optimizer, claimed.precision, claimed.variant
        ),
        claimed.estimator,
        gpu or claimed.gpu,
        gpu_mib,
        SHARED if shards else OBSERVED if observed else INSTANCE if mode == MIG else WHOLE,
        shards,
        limit,
        claimed.estimate_mib,
        request,
        None if peak is None else round(peak),
        start,
        end,
        record.known_state,
        int(record.out_of_memory),
        sm_share,
        energy,
        idle_energy,
        idle,
        None if alone is None else alone * (len(devices) or 1),
        int(basis == PREDICTED) if met else None,
        cpus,
        cpus_mean,
        len(devices) or 1,
        day,
        gpu_s,
        gpu_s * shared_part(request, gpu_mib, shard_mib)
        if observed and gpu_s and request and gpu_mib
        else None,
        array_job,
        array_task,
        _SEPARATOR.join(rest),
        devices,
    )


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


def _summed(measured: Mapping[str, GpuFigures], name: str) -> Optional[float]:
    known = [value for figures in measured.values() if (value := getattr(figures, name)) is not None]
    return sum(known) if known else None


def _alone_sm(measured: Mapping[str, GpuFigures]) -> str:
    known = [figures.alone_sm for figures in measured.values() if figures.alone_sm is not None]
    return str(round(sum(known) / len(known), 4)) if known and len(known) == len(measured) else ""


def split_parts(text: str) -> Dict[str, int]:
    """The estimate's parts of the index's text for them; empty when there are none."""
    return CommentRecord(parts=text).part_sizes


def _gpus(
    uuids: Tuple[str, ...], measured: Mapping[str, GpuFigures]
) -> Tuple[Tuple[_Device, ...], Optional[float], Optional[float], str, Optional[int]]:
    """Devices, the job's SM share and the GPUs' activity (means over GPUs), their name, least memory."""
    devices: List[_Device] = []
    shares: List[float] = []
    whole: List[float] = []
    short, least = "", None
    for uuid in uuids:
        figures = measured.get(uuid, _NO_FIGURES)
        device, name = _device(uuid, figures.number, figures.name, figures.memory_mib)
        if not devices:
            short = name
        devices.append(device)
        mib = device[3]
        if mib and (least is None or mib < least):
            least = mib
        share, activity = figures.sm_active_share, figures.gpu_sm_active
        if activity is None:
            # Without SM counters the part of time with any kernel is the next best that NVML has.
            activity = figures.gpu_utilization
        if share is not None:
            shares.append(share)
        if activity is not None:
            whole.append(activity)
    return (
        tuple(devices),
        sum(shares) / len(shares) if shares else None,
        sum(whole) / len(whole) if whole else None,
        short,
        least,
    )


@lru_cache(maxsize=16_384)
def _recipe_text(fingerprint: str, batch: Optional[int], *words: str) -> str:
    return _SEPARATOR.join((fingerprint, "" if batch is None else str(batch), *words))


@lru_cache(maxsize=16_384)
def _device(uuid: str, number: Optional[int], name: str, mib: Optional[float]) -> Tuple[_Device, str]:
    """A GPU as it is stored, and its short name: the same for each job that was there."""
    return (uuid, number, name, None if mib is None else round(mib)), short_gpu_name(name)


@lru_cache(maxsize=4096)
def _day(quarter: int) -> int:
    """Of a quarter of an hour: no time zone changes its offset within one."""
    local = time.localtime(quarter * _QUARTER_S)
    return (quarter * _QUARTER_S + local.tm_gmtoff) // 86_400
