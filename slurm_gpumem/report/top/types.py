"""What one screen of `gpumem top` shows."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple


class TopJob(NamedTuple):
    """One job on one node; None is "not known". Sizes are in MiB."""

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
    """How much longer its steps take beside others: 1 where it has met nobody, else nobody measures it."""
    max_slowdown: Optional[float] = None
    """What its share was sized for."""
    left_s: Optional[float] = None
    seen_at: Optional[float] = None
    """Unix time of the measurement; None where there is none."""
    profile: str = ""
    """Of its MIG instance; "" on a whole GPU or a share."""


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
