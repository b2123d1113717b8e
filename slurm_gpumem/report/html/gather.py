"""One pass over the jobs: everything that the page shows of them, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Set

from slurm_gpumem.accounting.types import JobRow
from slurm_gpumem.report.html.accuracy import Errors, Scatter
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.report.html.usage import BeforeAfter, Occupancy

MOST_RECENT = 1_000
"""Jobs on the timeline."""
MOST_GPUS_ON_TIMELINE = 12


def gather(source: PageSource, now: float) -> Gathered:
    """Read the rows once; they come oldest end first."""
    scatter, errors, change, occupancy = Scatter(), Errors(), BeforeAfter(), Occupancy()
    recent: Deque[JobRow] = deque(maxlen=MOST_RECENT)
    jobs = running = 0
    clusters: Set[str] = set()
    first: Optional[float] = None
    last: Optional[float] = None
    for row in source.rows:
        jobs += 1
        running += row.end is None
        if len(clusters) < 2 and row.cluster:
            clusters.add(row.cluster)
        end = now if row.end is None else row.end
        first = row.start if first is None else min(first, row.start)
        last = end if last is None else max(last, end)
        scatter.add(row)
        errors.add(row)
        change.add(row)
        occupancy.add(row, now)
        recent.append(row)
    wide = first is not None and (jobs > MOST_RECENT or occupancy.gpus > MOST_GPUS_ON_TIMELINE)
    return Gathered(
        jobs=jobs,
        clusters=tuple(sorted(clusters)),
        first=first,
        last=last,
        running=running,
        scatter=scatter.result(),
        errors=errors.result(),
        changes=change.result(),
        occupancy=occupancy.result(first, last) if wide and first is not None and last is not None else None,
        recent=tuple(recent),
    )
