"""Fit the roofline's coefficients: which share of the peak rates kernels reach, how long the CPU takes.

Nonlinear least squares over measured step times and activities, held near the physical starting values.
Machines of one kind do not start kernels equally fast: launch-bound steps of one session were half again as
long as those of another. So each measuring session has a factor of its own for the CPU's time, held near 1,
and the coefficients are those of a session between them.
"""

from __future__ import annotations

from math import inf
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from scipy.optimize import least_squares

from lab.fit.utilization_rows import UtilizationRow
from slurm_gpumem.utilization import roofline
from slurm_gpumem.utilization.roofline import HOST_NAMES, IN_WAVES, NAMES, START, coverage, rates_of
from slurm_gpumem.utilization.work import KINDS

Array = Any
_SCALES = {"step_seconds": 0.25, "sm_active": 0.10, "sm_occupancy": 0.06, "dram_active": 0.08}
"""Errors that weigh alike: a quarter of the step, ten points of activity ..."""
_HELD = 0.8
"""How far a coefficient may go from its start before that costs as much: a factor of e^0.8."""
_CACHED = float(np.log(2.5))
_MOST = 1.5
"""A share beyond this is no worse: some rows say nothing of what was run."""
_EVALUATIONS = 20
_SESSIONS_HELD = 0.3
"""The same for a session's factor."""
_BY_KIND = ("compute", "bandwidth", "warps", "traffic")


class Problem:
    """The rows' kernels as arrays."""

    def __init__(self, rows: Sequence[UtilizationRow]) -> None:
        self.count = len(rows)
        names = [session_of(row) for row in rows]
        self.sessions = sorted(set(names))
        self.session = np.array([self.sessions.index(name) for name in names])
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
        return self._answers(*self._known(logs))[0]

    def slopes(self, logs: Array) -> Dict[str, Array]:
        """How the logarithm of the step and the shares change with each one: rows by NAMES and session."""
        known, factors = self._known(logs)
        found, seconds, parts = self._answers(known, factors)
        step, own = found["step_seconds"], self._kinds("warps", known)
        taken = self.times * seconds
        arithmetic, bytes_, short = (taken * (parts == limit) for limit in range(3))
        first = {name: place for place, name in enumerate(NAMES)}
        kinds = {what: [first[f"{what}_{name}"] for name in KINDS] for what in _BY_KIND}
        gpu = np.zeros((self.count, len(logs)))
        active, warps, traffic = np.zeros_like(gpu), np.zeros_like(gpu), np.zeros_like(gpu)
        for into, each in ((gpu, 1.0), (active, self.covered), (warps, self.covered * own)):
            into[:, kinds["compute"]] = -self._by_kind(arithmetic * each)
            into[:, kinds["bandwidth"]] = -self._by_kind(bytes_ * each)
            into[:, first["latency"]] = self._sum(short * each)
        gpu[:, first["gap"]] = self._sum(self.times) * known["gap"]
        warps[:, kinds["warps"]] = self._by_kind(taken * self.covered * own)
        traffic[:, kinds["traffic"]] = self._by_kind(self.times * self.moved * self._kinds("traffic", known))
        traffic /= self.bytes_per_second[:, None]
        cpu = np.zeros_like(gpu)
        host = self.host * self._host(known) * factors[:, None]
        busy, waiting = self._sum(taken + self.times * known["gap"]), host.sum(axis=1)
        cpu[:, [first[f"host_{name}"] for name in HOST_NAMES]] = host
        cpu[np.arange(self.count), len(NAMES) + self.session] = waiting
        sharp = known["sharpness"]
        # step = (gpu^sharp + cpu^sharp)^(1/sharp)
        weight = 1 / (1 + (waiting / busy) ** sharp)
        logged = (weight / busy)[:, None] * gpu + ((1 - weight) / waiting)[:, None] * cpu
        ratio = np.minimum(busy, waiting) / np.maximum(busy, waiting)
        power = ratio**sharp
        logged[:, first["sharpness"]] = power * np.log(ratio) / (1 + power) - np.log1p(power) / sharp
        shares = {"sm_active": active, "sm_occupancy": warps, "dram_active": traffic}
        return {
            "step_seconds": logged,
            **{name: part / step[:, None] - found[name][:, None] * logged for name, part in shares.items()},
        }

    def _known(self, logs: Array) -> Tuple[Dict[str, float], Array]:
        """The coefficients, and each row's factor of its session."""
        values = np.exp(logs)
        return dict(zip(NAMES, values)), values[len(NAMES) :][self.session]

    def _answers(self, known: Mapping[str, float], factors: Array) -> Tuple[Dict[str, Array], Array, Array]:
        """The answers, each kernel's seconds, and what limits it: arithmetic, bytes or latency (0 to 2)."""
        rates = (
            self.compute * self._kinds("compute", known),
            self.bytes_per_second[self.owner] * self._kinds("bandwidth", known),
        )

        def longest(flops: Any, moved: Any, latency: float) -> Array:
            return roofline.kernel_seconds(flops, moved, self.covered, rates, latency, np.maximum)

        seconds = longest(self.flops, self.moved, known["latency"])
        limits = np.where(longest(self.flops, 0.0, 0.0) >= seconds, 0, 1)
        limits[seconds <= known["latency"]] = 2
        gpu = self._sum(self.times * (seconds + known["gap"]))
        active = self.times * seconds * self.covered
        cpu = self.host @ self._host(known) * factors
        sharp = known["sharpness"]
        longer, shorter = np.maximum(gpu, cpu), np.minimum(gpu, cpu)
        step = longer * (1 + (shorter / longer) ** sharp) ** (1 / sharp)
        traffic = self._sum(self.times * self.moved * self._kinds("traffic", known)) / self.bytes_per_second
        found = {
            "step_seconds": step,
            "sm_active": self._sum(active) / step,
            "sm_occupancy": self._sum(active * self._kinds("warps", known)) / step,
            "dram_active": traffic / step,
        }
        return found, seconds, limits

    def _kinds(self, what: str, known: Mapping[str, float]) -> Array:
        return np.array([known[f"{what}_{name}"] for name in KINDS])[self.kind]

    def _host(self, known: Mapping[str, float]) -> Array:
        return np.array([known[f"host_{name}"] for name in HOST_NAMES])

    def _sum(self, values: Array) -> Array:
        return np.bincount(self.owner, weights=values, minlength=self.count)

    def _by_kind(self, values: Array) -> Array:
        places = self.owner * len(KINDS) + self.kind
        found = np.bincount(places, weights=values, minlength=self.count * len(KINDS))
        return found.reshape(self.count, len(KINDS))


class Fitted(NamedTuple):
    """What explains the rows best."""

    coefficients: Dict[str, float]
    sessions: Dict[str, float]
    """By session: how much longer its CPU took than the coefficients say."""


def session_of(row: UtilizationRow) -> str:
    """When and on which machine a row was measured."""
    return str(row.run.row.get("run", ""))


def fit_coefficients(rows: Sequence[UtilizationRow]) -> Fitted:
    """The coefficients and sessions that explain these rows best."""
    problem = Problem(rows)
    start = np.log([*(START[name] for name in NAMES), *(1.0 for _ in problem.sessions)])
    held = np.array([_HELD] * len(NAMES) + [_SESSIONS_HELD] * len(problem.sessions))
    truth = {name: np.array([row.run.values[name] for row in rows]) for name in _SCALES}

    def residuals(logs: Array) -> Array:
        found = problem.answers(logs)
        parts = [(np.log(found["step_seconds"]) - np.log(truth["step_seconds"])) / _SCALES["step_seconds"]]
        for name in ("sm_active", "sm_occupancy", "dram_active"):
            parts.append((np.minimum(found[name], _MOST) - truth[name]) / _SCALES[name])
        return np.concatenate([*parts, (logs - start) / held])

    def slopes(logs: Array) -> Array:
        found, answers = problem.slopes(logs), problem.answers(logs)
        parts = [found["step_seconds"] / _SCALES["step_seconds"]]
        for name in ("sm_active", "sm_occupancy", "dram_active"):
            parts.append(found[name] * (answers[name] < _MOST)[:, None] / _SCALES[name])
        return np.concatenate([*parts, np.diag(1 / held)])

    low = np.full(len(start), -np.inf)
    high = np.array([*map(_highest, NAMES), *(inf for _ in problem.sessions)])
    found = least_squares(
        residuals,
        np.minimum(start, high - 1e-3),
        jac=slopes,
        bounds=(low, high),
        loss="soft_l1",
        max_nfev=_EVALUATIONS,
    )
    values = [float(value) for value in np.exp(found.x)]
    return Fitted(dict(zip(NAMES, values)), dict(zip(problem.sessions, values[len(NAMES) :])))


def _highest(name: str) -> float:
    """No product is faster than the peak, no multiprocessor fuller than full; caches help with the bytes."""
    first = name.split("_")[0]
    return {"compute": 0.0, "warps": 0.0, "bandwidth": _CACHED}.get(first, inf)
