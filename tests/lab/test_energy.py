from __future__ import annotations

from typing import List

import pytest

from lab.score.energy import fitted_line, ratios_by_way
from lab.utilization_runs import load_sets
from slurm_gpumem.simulation.what_if_text import parse_fleet


def test_the_line_of_power_is_found_again_in_points_on_it() -> None:
    points = [(a / 10, d / 10, 50 + 300 * a / 10 + 100 * d / 10) for a in range(5) for d in range(3)]
    assert fitted_line(points) == pytest.approx((50, 300, 100))


def test_modelled_energy_of_sharing_is_near_what_was_measured() -> None:
    found = ratios_by_way(load_sets(), parse_fleet("1xh200"))
    assert sum(len(ratios) for ratios in found.values()) > 100
    for ratios in found.values():
        measured, modelled = (_mean([ratio[place] for ratio in ratios]) for place in (0, 1))
        assert modelled == pytest.approx(measured, abs=0.05)
        assert measured < 1


def _mean(values: List[float]) -> float:
    return sum(values) / len(values)
