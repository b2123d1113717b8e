"""Steps longer than those of the measured sets: MPS stays ahead of time slices, as measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict

import pytest

from lab.shared_speeds import predicted_speeds
from slurm_gpumem.utilization.interference import SHARED, TIMESLICE, JobLoad

PAIRS = Path(__file__).parents[2] / "lab" / "data" / "utilization" / "heavy-pairs.jsonl"


def _work(load: JobLoad, way: str) -> float:
    """What two of the same job do together, in units of one alone."""
    return sum(predicted_speeds(way, [load, load], ["a", "a"]))


def _measured() -> Dict[str, Dict[str, float]]:
    found: Dict[str, Dict[str, float]] = {}
    for line in PAIRS.read_text().splitlines():
        row = json.loads(line)
        names = row.get("set", ())
        if len(names) == 2 and len(set(names)) == 1:
            found.setdefault(row["mode"], {})[names[0]] = row["work"]
    return found


def test_measured_pairs_of_heavy_jobs_do_more_under_mps_than_in_turns() -> None:
    measured = _measured()
    for name in ("conv256", "conv1024"):
        assert measured["mps"][name] > 1.05
        assert measured["timeslice"][name] < 1.0


@pytest.mark.parametrize("step", [0.03, 0.06, 0.17, 0.5, 2.0])
@pytest.mark.parametrize("active", [0.6, 0.75, 0.9, 0.98])
def test_the_model_ranks_them_the_same_way_however_long_the_step(step: float, active: float) -> None:
    load = JobLoad(active, 0.4 * active, 0.45 * active, step)
    assert _work(load, SHARED) >= 1.0
    if active >= 0.75:
        assert _work(load, SHARED) > _work(load, TIMESLICE)


def test_a_pair_with_steps_of_170_ms_does_about_what_was_measured() -> None:
    load = JobLoad(0.93, 0.4, 0.4, 0.17)
    assert _work(load, SHARED) == pytest.approx(_measured()["mps"]["conv1024"], abs=0.15)
    assert _work(load, TIMESLICE) == pytest.approx(_measured()["timeslice"]["conv1024"], abs=0.05)
