"""What one screen of `gpumem top` shows."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.slurm.node_names import fold_names


class TopJob(NamedTuple):
    """One job; None is "not known". Sizes are in MiB; of several nodes those of the one with most."""

    job_id: int
    shown: str
    """As squeue shows it: "4711" or "4711_3"."""
    name: str
    user: str
    node: str
    gpus: Tuple[int, ...] = ()
    shards: Optional[int] = None
    share_mib: Optional[float] = None
    """What it may use of one GPU."""
    whole_gpu: bool = False
    estimate_mib: Optional[int] = None
    now_mib: Optional[float] = None
    peak_mib: Optional[float] = None
    sm_active: Optional[float] = None
    neighbours: Optional[int] = None
    neighbours_mib: Optional[float] = None
    slowdown: Optional[float] = None
    """How much longer its steps take while sharing: 1 where it has met nobody, else nobody measures it."""
    max_slowdown: Optional[float] = None
    """What its share was sized for."""
    left_s: Optional[float] = None
    seen_at: Optional[float] = None
    """Unix time of the measurement; None where there is none."""
    profile: str = ""
    """Of its MIG instance; "" on a whole GPU or a share."""


def once(rows: Sequence[TopJob]) -> Tuple[TopJob, ...]:
    """Rows of jobs on one node each → one row for each job, with the most that any of its nodes has."""
    by_job: Dict[int, List[TopJob]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    return tuple(_together(parts) if len(parts) > 1 else parts[0] for parts in by_job.values())


def _together(parts: Sequence[TopJob]) -> TopJob:
    most: Dict[str, Any] = {}
    for name in ("share_mib", "now_mib", "peak_mib", "sm_active", "neighbours", "neighbours_mib"):
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        most[name] = max(known, default=None)
    seen = [part.seen_at for part in parts]
    return parts[0]._replace(
        **most,
        node=fold_names([part.node for part in parts]),
        gpus=tuple(sorted({gpu for part in parts for gpu in part.gpus})),
        slowdown=1.0 if all(part.slowdown == 1.0 for part in parts) else None,
        seen_at=None if None in seen else min(at for at in seen if at is not None),
    )


class TopGpu(NamedTuple):
    """One GPU and who is on it, in shares."""

    node: str
    number: int
    capacity: int
    held: Tuple[Tuple[str, str, int], ...] = ()
    """(job, name, shares) of each."""
    profile: str = ""
    """Of a MIG instance."""


class View(NamedTuple):
    """Everything at one moment."""

    at: float
    everybody: bool
    jobs: Tuple[TopJob, ...]
    gpus: Tuple[TopGpu, ...] = ()
    """All GPUs of the cluster; only for admins."""
    notes: Tuple[str, ...] = ()
    """What is missing and why, or how it was had."""
