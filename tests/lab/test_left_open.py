"""What is stated of the environment of published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score import left_open

ROW = (
    "input:64_output:10_depth:2_arch:pyramid_batch:32_act:relu_dropout:0.1_dropout:False_batchnorm:False.out"
)


def test_a_trace_by_a_build_without_cuda_leaves_as_much_open_as_nothing_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "mlp.csv"
    file.write_text(f"Filename,Activation Function,Max GPU Memory (MiB)\n{ROW},ReLU,1431\n")
    lines = left_open.table(left_open.traced_runs(file, 1))
    figures = {line[:32].strip(): line[32:].split() for line in lines}
    assert figures["traced by a build without CUDA"] == figures["torch 2.2"] == figures["nothing"]
    assert figures["nothing"][2] == "0%"
    assert figures["the same, its version believed"][2] == "100%"
