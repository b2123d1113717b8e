"""Traced operators against those that were measured on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch

CHECK = """
import json
from lab.places import OPERATORS
from lab.probe.check import cases_in, compare
cases = list(cases_in(OPERATORS))
wanted = [case for case in cases if case["kind"] == "attention"][::9]
wanted += [case for case in cases if case["kind"] == "recurrent"][::12]
wanted += [case for case in cases if case["kind"] == "embedding"]
names = ("softmax", "rms_norm", "mse", "roll", "unfold", "gather_rows", "cross_entropy", "layer_norm")
wanted += [case for case in cases if case.get("name") in names]
found = [compare(case) for case in wanted]
print(json.dumps([[f.case["kind"], str(f.case), f.same, f.peak_error, f.kept_error] for f in found]))
"""


@pytest.fixture(scope="module")
def compared() -> List[Any]:
    """In a process of its own: it changes what operators do."""
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: List[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_attention_allocates_what_the_gpu_did(compared: List[Any]) -> None:
    different = [case for kind, case, same, _, _ in compared if kind == "attention" and not same]
    assert len(different) <= 1, different


def test_peaks_of_operators_are_those_of_the_gpu(compared: List[Any]) -> None:
    errors: Dict[str, float] = {case: max(abs(peak), abs(kept)) for _, case, _, peak, kept in compared}
    assert {case: error for case, error in errors.items() if error > 0.05} == {}
