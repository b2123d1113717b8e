"""What the page is made from, and what its charts need; all of bounded size however many jobs there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import Freshness, JobDetail, JobRow, JobTotals


@dataclass(frozen=True)
class PageSource:
    """Everything the page shows, as the store returns it."""

    rows: Iterable[JobRow]
    """Oldest end first, running jobs last; read once."""
    total: JobTotals
    users: Sequence[str] = ()
    """By their GPU-hours, most first."""
    by_day: Sequence[JobTotals] = ()
    freshness: Optional[Freshness] = None
    detail: Optional[Callable[[JobRow], JobDetail]] = None
    """One job in depth: its runs and curves; without it the timeline shows one block per job."""
    title: str = ""
    """Empty: named after the cluster."""
    selection: str = ""
    """Which jobs, in words: "user usr1, since 2026-11-01"."""
    made_at: float = 0.0
    personal: bool = False
    """One user's own page."""
    names: bool = True
    """Whether users stand in it by their names."""


@dataclass(frozen=True)
class Change:
    """The same jobs before and after: each with a GPU of its own, and sharing."""

    title: str
    note: str
    jobs: int
    before_s: float
    """GPU-seconds with a GPU each."""
    after_s: float
    """GPU-seconds sharing."""
    memory: Optional[Tuple[float, float]] = None
    """Part of the taken GPUs' memory in use, before and after."""
    sm: Optional[Tuple[float, float]] = None
    """SM activity of the taken GPUs, before and after."""


@dataclass(frozen=True)
class Gathered:
    """One pass over the rows."""

    jobs: int
    clusters: Tuple[str, ...]
    """At most two of them: one is worth a title."""
    first: Optional[float]
    last: Optional[float]
    running: int
    scatter: Dict[str, Any]
    errors: Dict[str, Any]
    changes: Tuple[Change, ...]
    occupancy: Optional[Dict[str, Any]]
    """Every GPU over the whole period; None where the timeline shows that already."""
    recent: Tuple[JobRow, ...]
    """The last jobs to end, for the timeline."""
