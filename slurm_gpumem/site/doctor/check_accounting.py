"""Checks of limits and bills: what holds for gres/gpu must have a twin for shares."""

from __future__ import annotations

import re
from typing import Iterator, List, Tuple

from slurm_gpumem.site.doctor.check_gpus import shares_per_gpu
from slurm_gpumem.site.doctor.findings import Finding, note, warning
from slurm_gpumem.site.setup.slurm_conf import value_of, words_of
from slurm_gpumem.site.snapshot import Snapshot

_OFF = 0.05
_LEAST_MODELS, _LEAST_JOBS = 5, 10
_ENTRY = re.compile(r"(?i)^(gres/)?([a-z]+)(?::([^=]+))?=([0-9.]+)([kmgt]?)$")


def shares_are_accounted(now: Snapshot) -> Iterator[Finding]:
    """Without gres/shard in AccountingStorageTRES, sacct cannot say who had how much."""
    if value_of(now.config, "AccountingStorageType") in (None, "accounting_storage/none"):
        return
    have = words_of(now.config, "AccountingStorageTRES")
    for gres, _ in shares_per_gpu(now):
        if f"gres/{gres}" not in have:
            yield warning(
                "accounting-tres",
                f"AccountingStorageTRES has no gres/{gres}",
                "shared jobs are in no report, limit or bill",
                f"AccountingStorageTRES=gres/gpu,gres/{gres} in slurm.conf, then restart slurmctld",
            )


def comments_are_kept(now: Snapshot) -> Iterator[Finding]:
    """The record of a job's estimate and request is in its comment, which Slurm forgets by default."""
    if value_of(now.config, "AccountingStorageType") != "accounting_storage/slurmdbd":
        return
    if "job_comment" not in words_of(now.config, "AccountingStoreFlags"):
        yield note(
            "comments-lost",
            "AccountingStoreFlags has no job_comment",
            "what a job was estimated at is forgotten when it ends",
            "AccountingStoreFlags=job_comment in slurm.conf, then restart slurmctld",
        )


def estimates_hold(now: Snapshot) -> Iterator[Finding]:
    """Mostly it is the CUDA context that differs where nobody measured it."""
    for gpu, part, models, jobs in now.offsets:
        if abs(part) > _OFF and models >= _LEAST_MODELS and jobs >= _LEAST_JOBS:
            yield note(
                "estimates-off",
                f"{gpu}: jobs take {abs(part) * 100:.0f} % {'more' if part > 0 else 'less'} than estimated "
                f"(median over {models} models, {jobs} jobs)",
                "requests are too small" if part > 0 else "requests are larger than need be",
                f"gpumem calibrate on a node with {gpu}",
            )


def faults_were_recorded(now: Snapshot) -> Iterator[Finding]:
    """After a month a site can see what one MPS server for all would have risked."""
    if now.faults:
        yield note(
            "faults-recorded",
            f"a CUDA fault ended {now.faults.ended:,} of {now.faults.runs:,} shared runs in "
            f"{now.faults.days:.0f} days",
            f"one MPS server for all users would have ended {now.faults.beside:,} more, of other users",
            "weigh that against what it gains: gpumem report --summary says how",
        )


def limits_have_twins(now: Snapshot) -> Iterator[Finding]:
    """A limit on gres/gpu does not bound shared jobs."""
    for limit in now.limits:
        for twin in limit_twins(limit.tres, now):
            yield warning(
                "limit-twin",
                f"{limit.entity}: {limit.name}={limit.tres} does not bound shared jobs",
                "Slurm counts their shares, not GPUs",
                f"sacctmgr modify {_where(limit.entity)} set {limit.name}={twin}",
            )


def billing_has_twins(now: Snapshot) -> Iterator[Finding]:
    """A billing weight on GRES/gpu does not bill shared jobs."""
    for part in now.partitions:
        weights = part.get("TRESBillingWeights", "")
        for twin in weight_twins(weights, now):
            yield warning(
                "billing-twin",
                f"partition {part['PartitionName']}: TRESBillingWeights={weights} does not bill shared jobs",
                "they use a GPU for nothing",
                f"TRESBillingWeights={weights},{twin} on its PartitionName line",
            )
    weights = value_of(now.config, "PriorityWeightTRES") or ""
    for twin in weight_twins(weights, now):
        yield warning(
            "priority-twin",
            f"PriorityWeightTRES={weights} does not weigh shared jobs",
            "their priority is that of jobs without a GPU",
            f"PriorityWeightTRES={weights},{twin} in slurm.conf",
        )


def limit_twins(tres: str, now: Snapshot) -> List[str]:
    """The share limits that a list of TRES lacks: 2 GPUs are 2 x 40 shards."""
    return [f"gres/{gres}={gpus * shares:.0f}" for gres, shares, gpus in _without_twin(tres, now)]


def weight_twins(tres: str, now: Snapshot) -> List[str]:
    """The share weights that a list of TRES lacks: a weight of 10 for a GPU is 10 / 40 for a shard."""
    return [f"GRES/{gres}={weight / shares:.6g}" for gres, shares, weight in _without_twin(tres, now)]


def _without_twin(tres: str, now: Snapshot) -> List[Tuple[str, int, float]]:
    """Gres, its shares of one GPU and the amount for gres/gpu, where gres/gpu stands alone."""
    entries = _entries(tres)
    gpus = [amount for name, kind, amount in entries if name == "gpu" and kind is None]
    names = {name for name, _, _ in entries}
    return [(gres, shares, gpus[0]) for gres, shares in shares_per_gpu(now) if gpus and gres not in names]


def _entries(tres: str) -> List[Tuple[str, object, float]]:
    found: List[Tuple[str, object, float]] = []
    for item in tres.split(","):
        match = _ENTRY.match(item.strip())
        if match and match[1]:
            factor = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[match[5].lower()]
            found.append((match[2].lower(), match[3], float(match[4]) * factor))
    return found


def _where(entity: str) -> str:
    """An entity as `sacctmgr modify` takes it: "qos normal" is "qos where name=normal"."""
    kind, name, *more = entity.split(" ")
    return " ".join([kind, "where", f"name={name}", *more])
