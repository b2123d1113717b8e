"""Changes of a traced step against traces of the changed code."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch

# In a process of its own: tracing registers operators, and pytest's process stays without torch.
SCRIPT = """
import json, sys
import torch
from torch import nn
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced import changes
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem import summarize
from slurm_gpumem.tracing.model.build import checkpoint_blocks

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def build():
    return nn.Sequential(nn.Linear(64, 256), *[Block() for _ in range(6)], nn.Linear(256, 100))

def traced(model, **more):
    return summarize(model, torch.zeros(64, 64, 64), batch_size=64, **more)

def peaks(trace):
    stats = replay(trace, None, find_gpu("h200")).stats
    return [stats.peak_allocated, stats.peak_reserved]

plain = traced(build())
checkpointed = build()
said = checkpoint_blocks(checkpointed)
named = {str(i): 64 * 64 * 256 for i in range(1, 7)}
print(json.dumps({
    "said": said,
    "plain": peaks(plain.trace),
    "checkpointed": peaks(traced(checkpointed).trace),
    "checkpointed by change": peaks(changes.checkpointed(plain.trace, named)),
    "amp": peaks(traced(build(), precision="amp-bf16").trace),
    "amp by change": peaks(changes.autocast(plain.trace)),
}))
"""


@pytest.fixture(scope="module")
def peaks() -> Dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: Dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_checkpointed_step_takes_what_its_own_trace_takes(peaks: Dict[str, Any]) -> None:
    assert peaks["said"] == "checkpointing: each of the 6 Block blocks"
    assert peaks["checkpointed"][0] < 0.7 * peaks["plain"][0]
    assert peaks["checkpointed by change"][0] == pytest.approx(peaks["checkpointed"][0], rel=0.03)
    assert peaks["checkpointed by change"][1] == pytest.approx(peaks["checkpointed"][1], rel=0.05)


def test_autocast_by_rule_is_near_its_own_trace(peaks: Dict[str, Any]) -> None:
    assert peaks["amp by change"][0] == pytest.approx(peaks["amp"][0], rel=0.1)
