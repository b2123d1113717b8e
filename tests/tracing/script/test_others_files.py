"""Large files of a colleague's, in a folder that both may write to, are overwritten in the private copy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slurm_gpumem.tracing.script.run import Limits, trace_command
from tests.support.needs import needs_root, needs_torch

pytestmark = [needs_root, needs_torch]

COLLEAGUE = 54329
LARGE = 9 << 20
"""Bytes: more than is copied beforehand."""
SCRIPT = """
import os, torch
WRITE
layer = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(4):
    layer(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "write",
    [
        "torch.save({'weights': torch.ones(3)}, 'large'); assert len(torch.load('large')['weights']) == 3",
        f"open('large', 'a').write('end'); assert os.path.getsize('large') == {LARGE} + 3",
        "open('large', 'w').write('new'); assert open('large').read() == 'new'",
    ],
    ids=["checkpoint", "appended", "emptied"],
)
def test_a_large_file_of_a_colleagues_is_written_to_and_stays_as_it_is(tmp_path: Path, write: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("WRITE", write))
    large = tmp_path / "large"
    large.write_bytes(b"\1" * LARGE)
    large.chmod(0o666)
    for path in (large, tmp_path):
        os.chown(path, COLLEAGUE, COLLEAGUE)
    tmp_path.chmod(0o777)
    limits = Limits(seconds=120.0, onward_s=1.0)
    traced = trace_command([sys.executable, "train.py"], limits, folder=str(tmp_path))
    assert traced.facts["ended"], traced.facts
    assert large.read_bytes() == b"\1" * LARGE
