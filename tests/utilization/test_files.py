"""The fitted files: what is wrong with one is said, and nothing in it is believed unchecked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Callable

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.utilization import interference, model

UTILIZATION = json.loads(data_path("models", model.FILE).read_text())
INTERFERENCE = json.loads(data_path("models", interference.FILE).read_text())


def broken(content: Any, change: Callable[[Any], None]) -> Any:
    made = copy.deepcopy(content)
    change(made)
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(format="other"),
        lambda c: c["features"].pop(),
        lambda c: c["sources"]["summary"]["coefficients"].pop("latency"),
        lambda c: c["sources"]["summary"]["coefficients"].update(latency=0),
        lambda c: c["sources"]["summary"]["coefficients"].update(latency=float("nan")),
        lambda c: c["sources"]["summary"]["ranges"].pop(),
        lambda c: c["sources"]["summary"]["targets"]["sm_active"].update(bands=[[-1.0, 1.0]]),
        lambda c: c["sources"]["summary"]["targets"]["sm_active"].pop("guessed_bands"),
        lambda c: c["sources"]["summary"].update(host=[1.2, 0.8]),
        lambda c: c["sources"]["summary"]["targets"]["sm_active"]["slopes"].pop(),
        lambda c: c["sources"]["summary"]["targets"].pop("step_seconds"),
        lambda c: c.pop("coverage"),
    ],
)
def test_a_damaged_utilization_file_is_refused(change: Callable[[Any], None]) -> None:
    with pytest.raises(ConfigError, match="somewhere"):
        model.from_json(broken(UTILIZATION, change), "somewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(format="other"),
        lambda c: c["modes"].pop("mps"),
        lambda c: c["modes"]["mps"]["coefficients"].update(pressure=-1.0),
        lambda c: c["modes"]["mps"]["coefficients"].update(own="1"),
        lambda c: c["modes"]["mps"].update(scale=[[1.0, 0.0], [2.0, 1.0]]),
        lambda c: c["modes"]["timeslice"].update(scale=[]),
        lambda c: c["turns"].update(capacity=1.5),
        lambda c: c.pop("turns"),
    ],
)
def test_a_damaged_interference_file_is_refused(change: Callable[[Any], None]) -> None:
    with pytest.raises(ConfigError, match="somewhere"):
        interference.from_json(broken(INTERFERENCE, change), "somewhere")


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    for load in (model.load, interference.load):
        with pytest.raises(ConfigError, match="make fit-utilization"):
            load(tmp_path / "none.json")
