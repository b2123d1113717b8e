"""Scores against published measurements: the rows' reader, and the arithmetic on a machine made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score import external

MODELS = ("timm/mobilenetv2_100@224", "timm/resnet18@224", "timm/efficientnet_b0@224")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine whose jobs take exactly 300 MiB more than is estimated."""
    path = tmp_path_factory.mktemp("external") / "runs.csv"
    rows = [{"model": name, "batch": "32", "measured_mib": "1"} for name in MODELS]
    made = external.estimates(rows, "corrected", "a100", "", path.parent)
    lines = [f"{row.model},32,{row.base[0] + 300}" for row in made]
    path.write_text("\n".join(["model,batch,measured_mib", *lines, ""]))
    return path


def test_one_constant_explains_a_machine_that_differs_by_one(runs: Path) -> None:
    made = external.estimates(external.read_rows(runs), "corrected", "a100", "", runs.parent)
    assert external.raw(made).median_error > 0.03
    after = external.after_one_constant(made)
    assert after.median_error < 0.001
    assert after.under_request == 0


def test_what_pytorch_reserved_is_compared_without_the_context(tmp_path: Path) -> None:
    rows = [{"model": MODELS[0], "batch": "32", "measured_mib": "5000", "reserved": "1"}]
    (made,) = external.estimates(rows, "corrected", "a100", "2.6.0+cu124", tmp_path)
    assert made.need_mib == 5522
