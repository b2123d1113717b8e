"""`gpumem trace` on a real script: what it tells."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slurm_gpumem.cli.gpumem import main
from tests.support.needs import needs_torch

pytestmark = needs_torch

COUNTS = """
import torch
class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(64, 64); self.calls = [0]
    def forward(self, x):
        self.calls[0] += 1
        return self.layer(x)
model = Counting().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2000):
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    assert model.calls[0] > step, "a call is missing"
"""


def test_a_script_that_cannot_be_followed_to_its_end_is_told_so_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts the calls of its model, which are skipped when they show nothing new."""
    (tmp_path / "train.py").write_text(COUNTS)
    assert main(["trace", "--gpu", "h200", "--", sys.executable, str(tmp_path / "train.py")]) == 0
    printed = capsys.readouterr().out
    assert "not seen: evaluation, writing a checkpoint, the script's end" in printed
    assert "it was not followed further: AssertionError: a call is missing; train.py, line 13" in printed
    assert "-> request" in printed


def test_a_shell_script_may_set_pythonpath_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sizes.py").write_text("WIDTH = 64\n")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom sizes import WIDTH\n"
        "model = torch.nn.Linear(WIDTH, WIDTH).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(4):\n"
        "    model(torch.randn(8, WIDTH, device='cuda')).sum().backward(); optimizer.step()\n"
    )
    script = tmp_path / "train.sh"
    script.write_text("export PYTHONPATH=here\npython train.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert main(["trace", "--gpu", "h200", "--", "bash", "train.sh"]) == 0
    assert "-> request" in capsys.readouterr().out
