"""Spans of time in a rehearsal, and the work done while no job starts up: what sharing gives jobs that train.

Start-up takes seconds whatever a job trains afterwards, and holds the job's share of the GPU meanwhile.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

Row = Dict[str, Any]
Span = Tuple[float, float]


def calm_rate(
    jobs: Sequence[Row], rates: Mapping[str, float], starting: Sequence[Span], last: float
) -> Tuple[Optional[float], float]:
    """Work a second where no job starts up and the queue is not empty yet, and how long that was."""
    busy = union([(job["ready"], job.get("done", last)) for job in jobs if "ready" in job])
    calm = _minus([(low, min(high, last)) for low, high in busy if low < last], union(starting))
    done = sum(sum(inside(end, calm) for end in job["ends"]) / rates[job["kind"]] for job in jobs)
    seconds = length(calm)
    return (done / seconds if seconds else None), seconds


def _minus(spans: Sequence[Span], holes: Sequence[Span]) -> List[Span]:
    left = list(spans)
    for low, high in holes:
        parts = [(a, b) for one in left for a, b in ((one[0], min(one[1], low)), (max(one[0], high), one[1]))]
        left = [(a, b) for a, b in parts if b > a]
    return left


def length(spans: Sequence[Span]) -> float:
    """Of all together."""
    return sum(high - low for low, high in spans)


def inside(moment: float, spans: Sequence[Span]) -> bool:
    """Whether one of them has it."""
    return any(low <= moment <= high for low, high in spans)


def union(spans: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Joined where they overlap, in order."""
    joined: List[Tuple[float, float]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined
