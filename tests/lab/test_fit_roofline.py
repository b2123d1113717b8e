"""The fit's arrays and the submit path's plain Python are one formula."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from lab.fit.folds import fold_of
from lab.utilization_runs import load_solo
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.utilization.model import TextQuality
from slurm_gpumem.utilization.roofline import NAMES, START, rates_of, step_times, with_host
from tests.utilization.test_work import work

pytest.importorskip("scipy", reason="fitting needs the [train] extra")


def rows() -> Any:
    from lab.fit.utilization_rows import UtilizationRow

    run: Any = load_solo()[0]._replace(gpu=find_gpu("h200"))
    names = ("resnet50", "vit", "mobilenetv3")
    steps = [work(name, batch_size=batch, precision="amp-fp16") for name in names for batch in (4, 128)]
    return [UtilizationRow(run, "", True, fold_of(run.model), TextQuality(), step) for step in steps]


def test_arrays_and_plain_python_agree() -> None:
    from lab.fit.roofline import Problem

    given = rows()
    found = Problem(given).answers([*(log(START[name]) for name in NAMES), 0.0])
    for at, row in enumerate(given):
        times = step_times(row.work, rates_of(row.run.gpu), START)
        assert found["step_seconds"][at] == pytest.approx(times.step)
        assert found["sm_active"][at] == pytest.approx(times.busy / times.step)
        assert found["sm_occupancy"][at] == pytest.approx(times.warps / times.step)
        assert found["dram_active"][at] == pytest.approx(times.traffic / times.step)


def test_slopes_are_those_of_the_answers() -> None:
    import numpy as np

    from lab.fit.roofline import Problem

    problem = Problem(rows())
    assert len(problem.sessions) == 1
    logs = np.append(np.log([START[name] for name in NAMES]), 0.2) + 0.01
    found = problem.slopes(logs)
    for place, name in enumerate((*NAMES, "session")):
        step = 1e-6 * np.eye(len(logs))[place]
        more, less = problem.answers(logs + step), problem.answers(logs - step)
        for target, slopes in found.items():
            scale = less[target] if target == "step_seconds" else 1.0
            tried = (more[target] - less[target]) / scale / 2e-6
            assert slopes[:, place] == pytest.approx(tried, abs=1e-6), (target, name)


def test_a_session_on_a_slow_machine_is_told_apart_from_slow_kernels() -> None:
    from lab.fit.roofline import fit_coefficients

    given = []
    for name, slower in (("first", 1.0), ("second", 1.5)):
        for row in rows():
            times = with_host(step_times(row.work, rates_of(row.run.gpu), START), slower, START)
            shares = {"sm_active": times.busy, "sm_occupancy": times.warps, "dram_active": times.traffic}
            values = {key: part / times.step for key, part in shares.items()}
            run = row.run._replace(values={**values, "step_seconds": times.step}, row={"run": name})
            given.append(row._replace(run=run))
    found = fit_coefficients(given).sessions
    assert found["second"] / found["first"] == pytest.approx(1.5, rel=0.1)
