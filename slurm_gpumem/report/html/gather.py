"""One pass over the jobs: everything that the page shows of them, in bounded memory."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Deque, Dict, List, Optional, Set, Tuple

from slurm_gpumem.accounting.types import JobRow
from slurm_gpumem.report.html.accuracy import Errors, Scatter
from slurm_gpumem.report.html.personal import PersonalFigures
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.report.html.usage import BeforeAfter, Occupancy

MOST_LISTED = 1_000
MOST_NOTABLE = 100
"""Jobs of each kind listed besides the latest: out of memory, most unused memory, largest error."""
MOST_GPUS_ON_TIMELINE = 12


def gather(source: PageSource, now: float) -> Gathered:
    """Read the rows once; they come oldest end first."""
    personal = PersonalFigures(source.shard_mib) if source.personal else None
    scatter, errors, change, occupancy = Scatter(), Errors(), BeforeAfter(), Occupancy()
    recent: Deque[JobRow] = deque(maxlen=MOST_LISTED)
    notable = _Notable()
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
        notable.add(row)
        if personal is not None:
            personal.add(row)
    all_recent = jobs <= MOST_LISTED
    listed = list(recent)
    if not all_recent:
        seen = {(row.cluster, row.job_id) for row in recent}
        listed = [*notable.besides(seen), *listed]
    wide = first is not None and (not all_recent or occupancy.gpus > MOST_GPUS_ON_TIMELINE)
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
        listed=tuple(listed),
        listed_why="" if all_recent else _why(len(listed), jobs),
        personal=None if personal is None else personal.result(source.total),
    )


def _why(listed: int, jobs: int) -> str:
    return (
        f"{listed:,} of {jobs:,} jobs: the {MOST_LISTED:,} that ended last, and of the earlier ones up to "
        f"{MOST_NOTABLE} each that ran out of memory, left the most memory unused, or had the largest error"
    )


class _Notable:
    """Jobs of the whole period that somebody would look for in the list."""

    def __init__(self) -> None:
        self._heaps: Dict[str, List[Tuple[float, int, JobRow]]] = {"oom": [], "waste": [], "error": []}
        self._count = 0

    def add(self, row: JobRow) -> None:
        self._count += 1
        if row.ooms:
            self._push("oom", float(row.end or row.start), row)
        if row.waste_mib and row.gpu_s:
            self._push("waste", row.waste_mib * row.gpu_s, row)
        if row.error is not None:
            self._push("error", abs(row.error), row)

    def _push(self, kind: str, weight: float, row: JobRow) -> None:
        heap = self._heaps[kind]
        if len(heap) < MOST_NOTABLE:
            heapq.heappush(heap, (weight, self._count, row))
        elif heap[0][0] < weight:
            heapq.heapreplace(heap, (weight, self._count, row))

    def besides(self, seen: Set[Tuple[str, int]]) -> List[JobRow]:
        """Those that are not in the list yet, each once, in the order in which they came."""
        found = {number: row for heap in self._heaps.values() for _, number, row in heap}
        return [
            row
            for _, row in sorted(found.items(), key=lambda item: item[0])
            if (row.cluster, row.job_id) not in seen
        ]
