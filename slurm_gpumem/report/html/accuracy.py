"""Estimated against measured: what the scatter and the histogram of the page are drawn from.

Up to some thousand jobs each is a point. Beyond that the picture is counted into cells, and only jobs that
stand out are points, so that a page of a million jobs is no larger than one of ten thousand.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.accounting.types import JobRow, JobTotals
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import energy, hours, percent

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
        self._outcomes = [0, 0, 0]
        self._range = (math.inf, 0.0)

    def add(self, row: JobRow) -> None:
        """Count one job."""
        estimate, peak = row.estimate_mib, row.peak_mib
        if not estimate or not peak or estimate < 0 or peak < 0:
            return
        above = row.request_mib is not None and peak > row.request_mib
        kind = OOM if row.ooms else ABOVE if above else WITHIN
        self._count += 1
        self._outcomes[kind] += 1
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
            "kinds": self._outcomes,
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


# The page's figures in words: the tiles at its top, what its charts say, what it is based on.


def tiles(total: JobTotals) -> List[Tuple[str, str, str]]:
    """The figures that a meeting asks for first: (title, figure, what it says)."""
    found: List[Tuple[str, str, str]] = []
    if total.shared and total.gpu_s and total.used_s:
        words = f"for {hours(total.gpu_s)} of run time; time alone not known"
        if total.saved is not None:
            words = f"{percent(total.saved)} less than {hours(total.alone_s)} alone"
        found.append(("GPU-hours", hours(total.used_s), words))
        words = f"{total.shared:,} of {count(total.jobs, 'job')} asked for a share"
        found.append(("Jobs per GPU", f"{total.jobs_per_gpu or 0:.1f}", words))
    elif total.gpu_s:
        how = "none shared" if total.used_s is not None else "of run time; some beside other users' jobs"
        found.append(("GPU-hours", hours(total.gpu_s), f"{count(total.jobs, 'job')}, {how}"))
    if total.would_of_s:
        saved = 1 - total.would_s / total.would_of_s
        found.append(
            (
                "Sharing would take",
                hours(total.would_s),
                f"of {hours(total.would_of_s)} GPU-hours: {percent(saved)} less",
            )
        )
    if total.estimated:
        within = f"95% of {count(total.estimated, 'estimate')} within {percent(total.p95_error)}"
        found.append(("Median error", percent(total.median_error), within))
        part = (
            f"{percent(total.under_request / total.estimated, digits=1)} of jobs"
            if total.under_request
            else "no job"
        )
        found.append(
            ("Above need", f"{total.under_request:,}", f"{part} took more than estimated with the reserve")
        )
    held = f"in {count(total.oom_avoided, 'job')} the reserve held" if total.oom_avoided else ""
    met = f"{total.oom_recovered:,} recovered, {total.oom_lost:,} lost" if total.ooms else "none met"
    found.append(("Out of memory", f"{total.ooms:,}", "; ".join(filter(None, (met, held)))))
    if total.unused is not None:
        found.append(("Memory unused", percent(total.unused), "of what was granted was never needed"))
    if total.energy_jobs:
        found.append(
            (
                "Energy per job",
                energy(total.energy_j / total.energy_jobs),
                f"mean of {count(total.energy_jobs, 'job')}",
            )
        )
    return found


def facts(source: PageSource, gathered: Gathered) -> Dict[str, str]:
    """What the charts say, for whoever cannot see them, by the id that the script looks for."""
    errors, total, outcomes = gathered.errors, source.total, gathered.scatter["kinds"]
    return {
        "about-scatter": f"{count(gathered.scatter['jobs'], 'job')} with an estimate and a measured peak: "
        f"{outcomes[0]:,} stayed within their need, {outcomes[1]:,} went above it, "
        f"{outcomes[2]:,} ran out of memory.",
        "about-errors": f"Median error {percent(errors['median'], sign=True) or 'unknown'}; "
        f"{total.under_estimate:,} of {total.estimated:,} estimates were below the peak.",
    }


def notes(source: PageSource) -> List[str]:
    """What the page is based on, and what is missing."""
    fresh = source.freshness
    found = []
    if fresh is not None:
        if not fresh.everybody:
            found.append("Only the jobs of the user who made this page are in it.")
        elif not source.personal and not source.names:
            found.append("Users are numbered by their GPU-hours; --names shows their names.")
        if fresh.slurm:
            found.append(f"Without Slurm's own accounting: {fresh.slurm}")
        if fresh.bad:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in fresh.bad_reasons.items())
            found.append(
                f"{count(fresh.bad, 'record')} of {fresh.records + fresh.bad:,} could not be used: {reasons}"
            )
    found.append(
        "SM activity and energy of a shared GPU are split evenly over the jobs that hold memory of it."
    )
    return found
