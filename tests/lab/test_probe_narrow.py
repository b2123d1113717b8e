"""Narrow convolutions that are drawn to be measured."""

from __future__ import annotations

import pytest

from lab.probe.measured_calls import convolution_of
from slurm_gpumem.estimators.workspaces.convolutions import Call
from slurm_gpumem.estimators.workspaces.fourier import weight_bytes

pytest.importorskip("torch", reason="the probe runs operators of PyTorch")

from lab.probe import narrow


def test_a_seed_fixes_cases_that_differ_and_fit_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "COUNT", 200)
    cases = narrow.narrow_cases(1)
    assert cases == narrow.narrow_cases(1) != narrow.narrow_cases(2)
    assert len({str(case) for case in cases}) == len(cases) >= 200
    for case in cases:
        asked = convolution_of("weight", case)
        call = Call(asked, case["batch"])
        assert narrow.LEAST <= weight_bytes(asked, case["batch"]) <= narrow.MOST
        assert max(call.data, call.output) <= narrow.LARGEST_TENSOR
    assert {len(case["size"]) for case in cases} == {1, 2}
