"""`--estimator fake-tensor-mode`: PyTorch's own mode on the model's code, with its time."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.test_traced_code import Place
from tests.support.needs import needs_torch

CODE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(1024, 1024, bias=False) for _ in range(2))

    def forward(self, x):
        return self.second(self.first(x))

class Reads(Net):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum().item() > 0 else -y
"""
ASKED = ("--input", "1024", "--batch-size", "256", "--optimizer", "sgd-momentum", "--gpu", "h200")
NAMED = ("--estimator", "fake-tensor-mode")


def place_with_code(folder: Path) -> Place:
    place = Place(folder)
    (folder / "net.py").write_text(CODE)
    return place


@needs_torch
def test_it_counts_live_tensors_and_tells_its_time(tmp_path: Path) -> None:
    done = place_with_code(tmp_path).gpumem("estimate", "net.py:Net", *ASKED, *NAMED, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # Weights, gradients and momentum have 8 MiB each; every activation has 1 MiB.
    assert told["estimator"] == "fake-tensor-mode"
    assert told["parts"]["weights"] == 8
    assert 24 <= told["peak_mib"] <= 30
    assert re.search(r"FakeTensorMode took [0-9.]+ s to build the model", done.stdout)


@needs_torch
def test_code_that_reads_values_fails_by_its_name(tmp_path: Path) -> None:
    done = place_with_code(tmp_path).gpumem("estimate", "net.py:Reads", *ASKED, *NAMED)
    assert done.returncode == 2
    assert done.stderr.startswith("gpumem: net.py:Reads in FakeTensorMode: ")
    assert "DataDependentOutputException" in done.stderr


@needs_torch
def test_what_it_does_not_run_is_refused(tmp_path: Path) -> None:
    place = place_with_code(tmp_path)
    done = place.gpumem("estimate", "net.py:Net", *ASKED, *NAMED, "--precision", "amp-bf16")
    assert done.returncode == 2
    assert "only a plain training in fp32" in done.stderr
    (tmp_path / "text.txt").write_text("Net(\n  (0): Linear(in_features=1024, out_features=10)\n)\n")
    done = place.gpumem("estimate", "text.txt", *ASKED, *NAMED)
    assert done.returncode == 2
    assert "name the model's code" in done.stderr
