"""The fit's arrays and the submit path's plain Python are one formula."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from slurm_gpumem.memory.correction.folds import fold_of
from slurm_gpumem.memory.gpus import find_gpu
from slurm_gpumem.utilization.features import Seen
from slurm_gpumem.utilization.measured import load_solo
from slurm_gpumem.utilization.roofline import NAMES, START, rates_of, step_times
from tests.utilization.test_work import work

pytest.importorskip("scipy", reason="fitting needs the [train] extra")


def test_arrays_and_plain_python_agree() -> None:
    from slurm_gpumem.training.fit_roofline import Problem
    from slurm_gpumem.training.utilization_rows import UtilizationRow

    gpu = find_gpu("h200")
    run: Any = load_solo()[0]._replace(gpu=gpu)
    names = ("resnet50", "vit", "mobilenetv3")
    steps = [work(name, batch_size=batch, precision="amp-fp16") for name in names for batch in (4, 128)]
    rows = [UtilizationRow(run, "", True, fold_of(run.model), Seen(), step) for step in steps]
    found = Problem(rows).answers([log(START[name]) for name in NAMES])
    for at, step in enumerate(steps):
        times = step_times(step, rates_of(gpu), START)
        assert found["step_seconds"][at] == pytest.approx(times.step)
        assert found["sm_active"][at] == pytest.approx(times.busy / times.step)
        assert found["sm_occupancy"][at] == pytest.approx(times.warps / times.step)
        assert found["dram_active"][at] == pytest.approx(times.traffic / times.step)
