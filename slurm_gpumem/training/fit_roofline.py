"""Fit the roofline's coefficients: which share of the peak rates kernels reach, how long the CPU takes.

Nonlinear least squares over measured step times and activities, held near the physical starting values.
"""

from __future__ import annotations

from math import inf
from typing import Any, Dict, List, Sequence

import numpy as np
from scipy.optimize import least_squares

from slurm_gpumem.training.utilization_rows import UtilizationRow
from slurm_gpumem.utilization import roofline
from slurm_gpumem.utilization.roofline import HOST_NAMES, IN_WAVES, NAMES, START, coverage, rates_of
from slurm_gpumem.utilization.work import KINDS

Array = Any
_SCALES = {"step_seconds": 0.25, "sm_active": 0.10, "sm_occupancy": 0.06, "dram_active": 0.08}
"""Errors that weigh alike: a quarter of the step, ten points of activity ..."""
_HELD = 0.8
"""How far a coefficient may go from its start before that costs as much: a factor of e^0.8."""
_CACHED = float(np.log(2.5))
_EVALUATIONS = 20


class Problem:
    """The rows' kernels as arrays."""

    def __init__(self, rows: Sequence[UtilizationRow]) -> None:
        self.count = len(rows)
        kinds: List[int] = []
        flops: List[float] = []
        moved: List[float] = []
        covered: List[float] = []
        times: List[int] = []
        owner: List[int] = []
        compute: List[float] = []
        host: List[Sequence[float]] = []
        self.bytes_per_second = np.array([rates_of(row.run.gpu).bytes_per_second for row in rows])
        for index, row in enumerate(rows):
            rates = rates_of(row.run.gpu)
            host.append(roofline.host_counts(row.work))
            for (kind, arithmetic, taken, blocks), count in row.work.kernels.items():
                kinds.append(kind)
                flops.append(arithmetic)
                moved.append(taken)
                covered.append(coverage(blocks, rates.sms, IN_WAVES[kind]))
                times.append(count)
                owner.append(index)
                compute.append(rates.by_kind[kind])
        self.kind, self.owner = np.array(kinds), np.array(owner)
        self.flops, self.moved = np.array(flops, dtype=float), np.array(moved, dtype=float)
        self.covered, self.times = np.array(covered), np.array(times, dtype=float)
        self.compute, self.host = np.array(compute), np.array(host)

    def answers(self, logs: Array) -> Dict[str, Array]:
        """Step seconds and shares of all rows; the same formula as `roofline.step_times`."""
        known = dict(zip(NAMES, np.exp(logs)))

        def by_kind(what: str) -> Array:
            return np.array([known[f"{what}_{name}"] for name in KINDS])[self.kind]

        bandwidth = self.bytes_per_second[self.owner] * by_kind("bandwidth")
        seconds = roofline.kernel_seconds(
            self.flops,
            self.moved,
            self.covered,
            (self.compute * by_kind("compute"), bandwidth),
            known["latency"],
            np.maximum,
        )
        gpu = self._sum(self.times * (seconds + known["gap"]))
        active = self.times * seconds * self.covered
        cpu = self.host @ np.array([known[f"host_{name}"] for name in HOST_NAMES])
        sharp = known["sharpness"]
        longer, shorter = np.maximum(gpu, cpu), np.minimum(gpu, cpu)
        step = longer * (1 + (shorter / longer) ** sharp) ** (1 / sharp)
        traffic = self._sum(self.times * self.moved * by_kind("traffic")) / self.bytes_per_second
        return {
            "step_seconds": step,
            "sm_active": self._sum(active) / step,
            "sm_occupancy": self._sum(active * by_kind("warps")) / step,
            "dram_active": traffic / step,
        }

    def _sum(self, values: Array) -> Array:
        return np.bincount(self.owner, weights=values, minlength=self.count)


def fit_coefficients(rows: Sequence[UtilizationRow]) -> Dict[str, float]:
    """The coefficients that explain these rows best."""
    problem = Problem(rows)
    start = np.log([START[name] for name in NAMES])
    truth = {name: np.array([row.run.values[name] for row in rows]) for name in _SCALES}

    def residuals(logs: Array) -> Array:
        found = problem.answers(logs)
        parts = [(np.log(found["step_seconds"]) - np.log(truth["step_seconds"])) / _SCALES["step_seconds"]]
        for name in ("sm_active", "sm_occupancy", "dram_active"):
            parts.append((np.minimum(found[name], 1.5) - truth[name]) / _SCALES[name])
        return np.concatenate([*parts, (logs - start) / _HELD])

    low = np.full(len(start), -np.inf)
    high = np.array([_highest(name) for name in NAMES])
    found = least_squares(
        residuals,
        np.minimum(start, high - 1e-3),
        bounds=(low, high),
        loss="soft_l1",
        max_nfev=_EVALUATIONS,
    )
    return {name: float(np.exp(value)) for name, value in zip(NAMES, found.x)}


def _highest(name: str) -> float:
    """No product is faster than the peak, no multiprocessor fuller than full; caches help with the bytes."""
    first = name.split("_")[0]
    return {"compute": 0.0, "warps": 0.0, "bandwidth": _CACHED}.get(first, inf)
