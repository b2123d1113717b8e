"""Estimated against measured: what the scatter and the histogram of the page are drawn from.

Up to some thousand jobs each is a point. Beyond that the picture is counted into cells, and only jobs that
stand out are points, so that a page of a million jobs is no larger than one of ten thousand.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.accounting.types import JobRow
from slurm_gpumem.text import clipped

MOST_POINTS = 2_000
MOST_OUTSTANDING = 200
CELLS_PER_OCTAVE = 6
"""Cells for each doubling of memory, on both axes."""
BIN = 0.05
LOW, HIGH = -0.5, 1.0
"""Errors beyond these are counted at the ends."""
_BINS = round((HIGH - LOW) / BIN)

WITHIN, ABOVE, OOM = 0, 1, 2
"""A point's kind: stayed within its request; went above it; ran out of memory."""

Point = Tuple[int, int, Optional[int], int, int, str, str]


class Scatter:
    """Estimate and peak of every job that has both."""

    def __init__(self) -> None:
        self._points: List[Point] = []
        self._cells: Dict[Tuple[int, int], int] = {}
        self._outstanding: List[Tuple[float, int, Point]] = []
        self._count = 0
        self._kinds = [0, 0, 0]
        self._range = (math.inf, 0.0)

    def add(self, row: JobRow) -> None:
        """Count one job."""
        estimate, peak = row.estimate_mib, row.peak_mib
        if not estimate or not peak or estimate < 0 or peak < 0:
            return
        above = row.request_mib is not None and peak > row.request_mib
        kind = OOM if row.ooms else ABOVE if above else WITHIN
        self._count += 1
        self._kinds[kind] += 1
        self._range = (min(self._range[0], estimate, peak), max(self._range[1], estimate, peak))
        cell = (_cell(estimate), _cell(peak))
        self._cells[cell] = self._cells.get(cell, 0) + 1
        if len(self._points) < MOST_POINTS:
            self._points.append(_point(row, estimate, peak, kind))
        if kind != WITHIN:
            self._keep(peak / (row.request_mib or estimate), row, estimate, peak, kind)

    def _keep(self, weight: float, row: JobRow, estimate: int, peak: int, kind: int) -> None:
        heap = self._outstanding
        if len(heap) < MOST_OUTSTANDING:
            heapq.heappush(heap, (weight, self._count, _point(row, estimate, peak, kind)))
        elif heap[0][0] < weight:
            heapq.heapreplace(heap, (weight, self._count, _point(row, estimate, peak, kind)))

    def result(self) -> Dict[str, Any]:
        """For the page: points, or cells and the jobs that stand out."""
        all_shown = self._count <= MOST_POINTS
        shown = self._points if all_shown else [entry[2] for entry in self._outstanding]
        return {
            "jobs": self._count,
            "kinds": self._kinds,
            "range": [self._range[0], self._range[1]] if self._count else None,
            "points": [list(point) for point in shown],
            "cells": [] if all_shown else [[x, y, n] for (x, y), n in sorted(self._cells.items())],
            "per_octave": CELLS_PER_OCTAVE,
        }


def _point(row: JobRow, estimate: int, peak: int, kind: int) -> Point:
    return (estimate, peak, row.request_mib, kind, row.job_id, clipped(row.user, 24), clipped(row.model, 32))


class Errors:
    """How far estimates and requests were from the peak, counted into bins."""

    def __init__(self) -> None:
        self._estimates = _Bins()
        self._requests = _Bins()

    def add(self, row: JobRow) -> None:
        """Count one job."""
        if row.error is None or row.peak_mib is None:
            return
        self._estimates.add(row.error)
        if row.request_mib is not None:
            self._requests.add(row.request_mib / row.peak_mib - 1)

    def result(self) -> Dict[str, Any]:
        """For the page; the first and the last bin hold all that lies beyond."""
        return {
            "low": LOW,
            "bin": BIN,
            "estimates": self._estimates.counts,
            "requests": self._requests.counts,
            "median": self._estimates.median(),
            "jobs": sum(self._estimates.counts),
        }


class _Bins:
    def __init__(self) -> None:
        self.counts = [0] * (_BINS + 2)
        self._fine: Dict[int, int] = {}

    def add(self, error: float) -> None:
        place = math.floor((error - LOW) / BIN + 1e-9)
        self.counts[min(max(place, -1), _BINS) + 1] += 1
        fine = round(min(error, 100.0) * 1000)
        self._fine[fine] = self._fine.get(fine, 0) + 1

    def median(self) -> Optional[float]:
        """The middle signed error, to a tenth of a percent."""
        left = (sum(self.counts) + 1) // 2
        for fine in sorted(self._fine):
            left -= self._fine[fine]
            if left <= 0:
                return fine / 1000
        return None


def _cell(mib: int) -> int:
    return math.floor(math.log2(mib) * CELLS_PER_OCTAVE)
