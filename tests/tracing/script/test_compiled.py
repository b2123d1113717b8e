"""`torch.compile` in a script: what the compiled model holds, not what eager PyTorch would."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

TRAIN = """
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(256, 2048)]
        for _ in range(6): layers += [nn.LayerNorm(2048), nn.SiLU(), nn.Dropout(0.0), nn.Linear(2048, 2048)]
        self.f = nn.Sequential(*layers, nn.ReLU(), nn.Linear(2048, 10))
    def forward(self, x):
        %s
        return self.f(x)

model = Net().cuda()
%s
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(6):
    x, y = torch.randn(16384, 256).cuda(), torch.randint(0, 10, (16384,)).cuda()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
READS = "self.mean = x.mean(); x = x if self.mean.item() > 0 else -x"
SCRIPTS = {
    "compiled": TRAIN % ("pass", "model = torch.compile(model)"),
    "in-place": TRAIN % ("pass", "model.compile()"),
    "reads": TRAIN % (READS, "model = torch.compile(model)"),
    "eager": TRAIN % ("pass", ""),
}
MEASURED_MIB = 3064
"""Of the compiled one; eager PyTorch holds 4,136 MiB by its trace (H200, PyTorch 2.11)."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Future[TracedScript]]:
    folder: Path = tmp_path_factory.mktemp("compiled")

    def trace(name: str) -> TracedScript:
        Path(folder, f"{name}.py").write_text(SCRIPTS[name])
        limits = Limits(seconds=400, onward_s=1)
        return trace_command([sys.executable, f"{name}.py"], limits, folder=str(folder))

    with OnDemand() as pool:
        return {name: pool.submit(trace, name) for name in SCRIPTS}


def _peak(run: Future[TracedScript]) -> int:
    return estimate(run.result().summary.decode(), gpu="h200").peak_mib


def test_a_compiled_model_holds_what_was_measured(traced: Dict[str, Future[TracedScript]]) -> None:
    assert _peak(traced["compiled"]) == pytest.approx(MEASURED_MIB, rel=0.05)
    assert not any("torch.compile" in note for note in traced["compiled"].result().notes)


def test_a_model_that_is_compiled_in_place_holds_the_same(traced: Dict[str, Future[TracedScript]]) -> None:
    assert _peak(traced["in-place"]) == _peak(traced["compiled"])


def test_a_model_whose_graph_cannot_be_had_is_traced_as_eager_with_a_word(
    traced: Dict[str, Future[TracedScript]],
) -> None:
    (note,) = [note for note in traced["reads"].result().notes if "torch.compile" in note]
    assert "eager PyTorch" in note
    assert _peak(traced["reads"]) > 1.2 * MEASURED_MIB


def test_such_a_model_holds_what_eager_pytorch_holds(traced: Dict[str, Future[TracedScript]]) -> None:
    assert _peak(traced["reads"]) == pytest.approx(_peak(traced["eager"]), rel=0.02)
