"""Energy of the same work together and alone, measured and modelled: `python -m lab.score.energy`.

First the line of power that `simulation/types.py` has, fitted again on the jobs that were measured alone.
Then the sets of jobs: watts of the set over the watts that its jobs would have drawn one after the other,
each for its part of the work. Below 1, sharing saves energy.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from lab.command import exit_code
from lab.places import GROUND_TRUTH
from lab.shared_speeds import load_from, predicted_speeds
from lab.utilization_runs import SharedSet, load_sets, load_solo, way_of
from slurm_gpumem.simulation.types import IDLE, PER_ACTIVE, PER_DRAM, Fleet, watts
from slurm_gpumem.simulation.what_if_text import parse_fleet
from slurm_gpumem.utilization.interference import EQUAL, PER_USER, TIMESLICE

HEAVY = 1.2
"""Jobs whose activities alone add up to more than this do not fit beside each other."""
NAMES = {EQUAL: "one MPS server", PER_USER: "a server for each user", TIMESLICE: "time slices"}
Point = Tuple[float, float, float]
"""SM activity, DRAM activity, watts."""


class EnergyRatio(NamedTuple):
    """Energy of a set over that of the same work alone."""

    measured: float
    modelled: float


def fitted_line(points: Sequence[Point]) -> Tuple[float, float, float]:
    """Idle watts, watts by SM activity, watts by DRAM activity: the least squares."""
    columns = [[1.0] * len(points), *([point[place] for point in points] for place in (0, 1))]
    right = [point[2] for point in points]
    matrix = [[_dot(one, other) for other in columns] for one in columns]
    sides = [_dot(one, right) for one in columns]
    whole = _determinant(matrix)
    idle, active, dram = (
        _determinant([[*row[:place], side, *row[place + 1 :]] for row, side in zip(matrix, sides)]) / whole
        for place in range(3)
    )
    return idle, active, dram


def energy_ratio(one: SharedSet, fleet: Fleet) -> EnergyRatio:
    """Of a measured set; modelled from what was measured of each job alone."""
    alone = _dot(one.speeds, one.solo_watts)
    loads = [load_from(solo) for solo in one.solo]
    users = one.users or (0,) * len(one.jobs)
    kept = predicted_speeds(way_of(one), loads, list(map(str, users)))
    active = min(1.0, _dot(kept, [load.active for load in loads]))
    dram = min(1.0, _dot(kept, [load.dram for load in loads]))
    one_by_one = _dot(kept, [watts(fleet, load.active, load.dram) for load in loads])
    return EnergyRatio(one.watts / alone, watts(fleet, active, dram) / one_by_one)


def ratios_by_way(sets: Sequence[SharedSet], fleet: Fleet) -> Mapping[Tuple[str, str], List[EnergyRatio]]:
    """By way of sharing and by how much the jobs would like to do at once."""
    found: Dict[Tuple[str, str], List[EnergyRatio]] = {}
    for one in sets:
        total = sum(solo["sm_active"] for solo in one.solo)
        kind = "heavy" if total > HEAVY else "light"
        found.setdefault((way_of(one), kind), []).append(energy_ratio(one, fleet))
    return found


def main() -> int:
    """Print both tables."""
    fleet = parse_fleet("1xh200")
    points: List[Point] = []
    for run in load_solo([GROUND_TRUTH]):
        points.append((run.values["sm_active"], run.values["dram_active"], run.row["utilization"]["power_w"]))
    idle, active, dram = fitted_line(points)
    full = fleet.max_watts
    off = _mean([abs(watts(fleet, one, other) - power) for one, other, power in points])
    print(f"{len(points)} jobs alone: {idle:.1f} W + {active:.1f} W × SM + {dram:.1f} W × DRAM activity")
    print(
        f"in use: {IDLE * full:.1f} + {PER_ACTIVE * full:.1f} + {PER_DRAM * full:.1f}, {off:.0f} W off (mean)"
    )
    print(f"\n{'energy of sets':<24} {'SM activities':<14} sets  measured  modelled   of the same work alone")
    for (way, kind), ratios in sorted(ratios_by_way(load_sets(), fleet).items()):
        measured, modelled = (_mean([ratio[place] for ratio in ratios]) for place in (0, 1))
        sums = f"{'over' if kind == 'heavy' else 'up to'} {HEAVY:.0%}"
        print(f"{NAMES[way]:<24} {sums:<14} {len(ratios):>4}  {measured:>8.2f}  {modelled:>8.2f}")
    return 0


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(first, second))


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
