"""Make a memory line: sample an estimator over batch sizes, and draw as few straight pieces as will do."""

from __future__ import annotations

import heapq
from math import ceil
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.environment import WORKSPACE_MARGIN
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.memory_line import (
    CONTEXTS,
    MAX_BATCH,
    MAX_BYTES,
    MAX_MIB,
    Knot,
    MemoryLine,
    job_words,
)
from slurm_gpumem.estimators.registry import TRACE
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob

TOLERANCE = 0.01
"""What the line promises, against the full estimate, between a quarter of the batch and four times it."""
SPAN = 4
_AT_SAMPLES = 0.004
"""Held at the samples, so that what lies between them stays within TOLERANCE."""
_SMOOTH = 0.003
"""A piece whose middle is this near to its chord is not looked into further."""
_MOST_SAMPLES, _MOST_REPLAYS = 200, 48
"""Fewer of traces: each is replayed, and a line through 200 would take ten seconds. Between so few a line was
off by less than 2 % (tests/estimators/test_memory_line.py)."""
_LOOSER = (1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 100.0)
"""An estimate too rough for a line of MAX_BYTES is drawn with these multiples of the tolerance."""
_SMALL_WORKSPACE = 8_519_680
_LARGE_WORKSPACE = 32 << 20
_CONTEXT_MIB = 764
_PROBE_MIB = 512

Estimating = Callable[[TrainingJob, Gpu], Estimate]
"""An estimator with its summary already given."""
Progress = Callable[[int], None]


def make_line(
    fingerprint: str,
    job: TrainingJob,
    estimate: Estimating,
    progress: Optional[Progress] = None,
    *,
    span: int = SPAN,
) -> MemoryLine:
    """The memory line of a model that `job` trains, for 1/span to span times its batch.

    `progress` hears of every estimate made.
    """
    samples = _Sampler(job, estimate, progress or (lambda count: None))
    context = samples.context()
    large, small = samples.gpu(_LARGE_WORKSPACE), samples.gpu(_SMALL_WORKSPACE)
    low, high = max(1, -(-job.batch_size // span)), min(MAX_BATCH, job.batch_size * span)
    if samples.estimator == TRACE and context[0] in ("conv", "both"):
        near = {max(low, job.batch_size // 2), job.batch_size, min(high, job.batch_size * 2)}
        samples.look_without_measured_workspaces(sorted(near))
    on_large = samples.points(large, low, high)
    if all(samples.at(batch, large) == samples.at(batch, small) for batch in samples.grid(low, high)):
        # No matrix products, so no workspace: the two are one.
        on_small: List[Knot] = []
    else:
        # Mostly the same line, a little higher: where it is everywhere else, a few looks tell.
        on_small = [samples.at(batch, small) for batch in samples.grid(low, high)]
        if _shift(on_large, on_small, _AT_SAMPLES / 2) is None:
            on_small = samples.points(small, low, high)
    for looser in _LOOSER:
        line = _draw(fingerprint, job, samples, context, on_large, on_small, _AT_SAMPLES * looser)
        if len(line.text()) <= MAX_BYTES:
            break
    return line


def _draw(
    fingerprint: str,
    job: TrainingJob,
    samples: _Sampler,
    context: Tuple[str, int, int],
    on_large: Sequence[Knot],
    on_small: Sequence[Knot],
    tolerance: float,
) -> MemoryLine:
    kind, of_peak, of_request = context
    peak_share, request_share = _CONTEXT_MIB * of_peak // 100, _CONTEXT_MIB * of_request // 100

    def bare(knots: Sequence[Knot]) -> Tuple[Knot, ...]:
        return tuple(Knot(k.batch, k.peak_mib - peak_share, k.request_mib - request_share) for k in knots)

    knots = straight_pieces(on_large, tolerance)
    shift = _shift(knots, on_small, tolerance) if on_small else (0, 0)
    return MemoryLine(
        fingerprint=fingerprint,
        estimator=samples.estimator,
        job=job_words(job),
        context=kind,
        context_peak=of_peak,
        context_request=of_request,
        batch=job.batch_size,
        knots=bare(knots),
        small_knots=bare(straight_pieces(on_small, tolerance)) if shift is None else (),
        small_shift=shift or (0, 0),
        unmeasured_percent=samples.unmeasured_percent,
    )


class _Sampler:
    """Estimates at batch sizes and GPUs, each made once."""

    def __init__(self, job: TrainingJob, estimate: Estimating, progress: Progress) -> None:
        self._job, self._estimate, self._progress = job, estimate, progress
        self._known: Dict[Tuple[int, Gpu], Knot] = {}
        self.estimator = ""
        self.unmeasured_percent: Optional[int] = None
        self._run(job.batch_size, self.gpu(_LARGE_WORKSPACE))

    def gpu(self, workspace: int, context: int = _CONTEXT_MIB, step: int = 0) -> Gpu:
        """A GPU with this cuBLAS workspace and context; the kinds of context differ by `step`."""
        return find_gpu("h200")._replace(
            # Who reads the line knows how large the job's GPU is.
            memory_mib=MAX_MIB,
            cublas_workspace_bytes=workspace,
            context_bare_mib=context + step,
            context_conv_mib=context + 2 * step,
            context_matmul_mib=context + 3 * step,
            context_mib=context + 4 * step,
        )

    def context(self) -> Tuple[str, int, int]:
        """Which context the job has, and the per cent of it that peak and request hold."""
        batch = self._job.batch_size
        without = self.at(batch, self.gpu(_LARGE_WORKSPACE))
        more = self.at(batch, self.gpu(_LARGE_WORKSPACE, _CONTEXT_MIB + _PROBE_MIB))
        of_peak = (more.peak_mib - without.peak_mib) / _PROBE_MIB
        stepped = self.at(batch, self.gpu(_LARGE_WORKSPACE, step=_PROBE_MIB)).peak_mib - without.peak_mib
        # The context's own part of the peak.
        kind = round(stepped / _PROBE_MIB / of_peak) if of_peak else 0
        if not 1 <= kind < len(CONTEXTS):
            return "none", 0, 0
        of_request = (more.request_mib - without.request_mib) / _PROBE_MIB
        return CONTEXTS[kind], round(of_peak * 100), round(of_request * 100)

    def look_without_measured_workspaces(self, batches: Sequence[int]) -> None:
        """The most that requests get more on GPUs without them; those mostly have small cuBLAS workspaces."""
        known, shares = self.gpu(_SMALL_WORKSPACE), [0.0]
        for batch in batches:
            made = self._run(batch, known._replace(workspaces_measured=False))
            shares.append((made.request_mib - self.at(batch, known).request_mib) / made.peak_mib)
        percent = min(999, ceil(max(shares) * 100))
        self.unmeasured_percent = percent if percent > WORKSPACE_MARGIN else None

    def at(self, batch: int, gpu: Gpu) -> Knot:
        """The estimate, as a knot with its context."""
        if (batch, gpu) not in self._known:
            made = self._run(batch, gpu)
            self._known[batch, gpu] = Knot(
                batch, min(made.peak_mib, MAX_MIB // 2), min(made.request_mib, MAX_MIB // 2)
            )
        return self._known[batch, gpu]

    def _run(self, batch: int, gpu: Gpu) -> Estimate:
        made = self._estimate(self._job._replace(batch_size=batch), gpu)
        self.estimator = made.estimator
        self._progress(len(self._known))
        return made

    def grid(self, low: int, high: int) -> List[int]:
        """Where looking begins: the default estimate bends at eighths of the way between powers of two."""
        powers = [1 << n for n in range(low.bit_length() - 1, high.bit_length())]
        bends = {power + power * eighth // 8 for power in powers for eighth in range(8)}
        return sorted({b for b in bends if low < b < high} | {low, self._job.batch_size, high})

    def points(self, gpu: Gpu, low: int, high: int) -> List[Knot]:
        """Samples from `low` to `high`, dense where the estimate is rough: there it is halved first."""
        grid = self.grid(low, high)
        found = {batch: self.at(batch, gpu) for batch in grid}
        # Pieces by how far the middle of the one that they are part of was off, the farthest first.
        rough: List[Tuple[float, int, int]] = [(-1.0, a, b) for a, b in zip(grid, grid[1:])]
        most = _MOST_REPLAYS if self.estimator == TRACE else _MOST_SAMPLES
        while rough and len(found) < most:
            before, left, right = heapq.heappop(rough)
            if right - left < 2:
                continue
            middle = (left + right) // 2
            found[middle] = self.at(middle, gpu)
            off = _off(found[left], found[right], found[middle])
            # One straight look may be luck: only a piece of a straight one is done with.
            if max(off, -before) > _SMOOTH:
                heapq.heappush(rough, (-off, left, middle))
                heapq.heappush(rough, (-off, middle, right))
        return [found[batch] for batch in sorted(found)]


def _off(left: Knot, right: Knot, middle: Knot) -> float:
    """How far the middle lies from the straight line between its neighbours, as a part of itself."""
    part = (middle.batch - left.batch) / (right.batch - left.batch)
    return max(abs(a + (b - a) * part - m) / m for a, b, m in zip(left[1:], right[1:], middle[1:]))


def straight_pieces(points: Sequence[Knot], tolerance: float) -> List[Knot]:
    """Few knots whose straight pieces pass all points within `tolerance` (relative), in one sweep."""
    knots = [points[0]]
    at = 0
    while at < len(points) - 1:
        start = knots[-1]
        slopes = [(float("-inf"), float("inf"))] * 2
        end = at
        while end < len(points) - 1:
            point = points[end + 1]
            run = point.batch - start.batch
            tighter = [
                (max(low, (y * (1 - tolerance) - y0) / run), min(high, (y * (1 + tolerance) - y0) / run))
                for (low, high), y0, y in zip(slopes, start[1:], point[1:])
            ]
            if any(low > high for low, high in tighter):
                break
            slopes, end = tighter, end + 1
        run = points[end].batch - start.batch
        values = []
        for (low, high), y0, y in zip(slopes, start[1:], points[end][1:]):
            # As near to the point itself as the others allow; never downhill unless it must be.
            slope = min(max((y - y0) / run, low, min(0.0, high)), high)
            values.append(round(y0 + slope * run))
        knots.append(Knot(points[end].batch, values[0], values[1]))
        at = end
    return knots


def _shift(knots: Sequence[Knot], points: Sequence[Knot], tolerance: float) -> Optional[Tuple[int, int]]:
    """What to add to the line through `knots` to pass `points`; None when no one number does."""
    from slurm_gpumem.estimators.memory_line import interpolate

    shift: List[int] = []
    for column in (0, 1):
        low, high = float("-inf"), float("inf")
        for point in points:
            y, drawn = point[1 + column], interpolate(knots, point.batch)[column]
            low, high = max(low, y * (1 - tolerance) - drawn), min(high, y * (1 + tolerance) - drawn)
        if low > high:
            return None
        shift.append(round((low + high) / 2))
    return shift[0], shift[1]
