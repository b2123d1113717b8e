"""The fit of which gradients of weights are by Fourier transforms."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from lab.probe.measured_calls import MeasuredCall
from slurm_gpumem.estimators.workspaces import convolutions
from slurm_gpumem.estimators.workspaces.convolutions import Call, features, read_columns
from slurm_gpumem.summaries.trace_types import Convolution

np = pytest.importorskip("numpy", reason="fitting needs the [train] extra")
pytest.importorskip("sklearn", reason="fitting needs the [train] extra")

from lab.fit.fourier import Cases, as_file  # noqa: E402


def measured(channels: int, rows: int, call: str = "weight", kernel: int = 3) -> MeasuredCall:
    """A call that transforms if it has fewer than 64 channels, and else copies both tensors and more."""
    asked = Convolution(
        call=call, dtype="fp32", batch=(0, 1), channels=channels, outputs=channels, size=(16, 16),
        out_size=(16, 16), kernel=(kernel, kernel), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
    )  # fmt: skip
    at = Call(asked, rows)
    taken = convolutions.weight_bytes(asked, rows) if channels < 64 else (at.data + at.output) * 6 // 5
    return MeasuredCall(at, taken, str(channels))


def some() -> List[MeasuredCall]:
    return [measured(channels, rows) for channels in range(8, 128, 4) for rows in (64, 128, 256)]


def test_trees_that_are_written_and_read_answer_as_they_were_fitted(tmp_path: Path) -> None:
    cases = Cases(some())
    path = tmp_path / convolutions.FOURIER_FILE
    path.write_bytes(as_file(cases.trees(np.arange(len(cases.calls)))))
    trees = convolutions.fourier_from_columns(*read_columns(path))
    for each in cases.calls:
        call = each.call
        whole = convolutions.weight_bytes(call.convolution, call.rows)
        asked = convolutions.with_transforms(features(call), whole, call.data + call.output)
        likely = sum(tree.thresholds[tree.leaf(asked)] for tree in trees) / len(trees)
        assert (likely > convolutions.FROM) == (call.convolution.channels < 64)


def test_other_calls_and_kernels_of_one_tap_are_no_cases() -> None:
    others = [measured(16, 64, call="input"), measured(16, 64, kernel=1)]
    assert len(Cases([*some(), *others]).calls) == len(some())
