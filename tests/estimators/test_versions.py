"""What PyTorch's versions do differently: each rule by itself, and against traces made under its settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem import Estimate, estimate
from slurm_gpumem.estimators.allocator.tape import Tape
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import StepPlan, replay
from slurm_gpumem.estimators.traced.estimator import in_version
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.estimators.versions import KNOWN, RULES, cublas_workspace_bytes, differences
from slurm_gpumem.estimators.versions import in_version as gpu_in_version
from slurm_gpumem.report.estimate import assumptions
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import MIB
from tests.estimators.explain.small_trace import small_summary
from tests.support.needs import needs_torch

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
NOWHERE = Path("/nonexistent/gpumem-gpus.toml")


def text(name: str, torch: str, **more: Any) -> Estimate:
    return estimate(EXAMPLES / name, gpu="h200", torch=torch, estimator="structural", **more)


def test_each_rule_says_how_it_is_known_and_where_it_is_written() -> None:
    for rule in RULES:
        assert rule.known in KNOWN
        assert rule.source
        assert rule.since > (1, 13)


def test_before_2_0_gradients_stay_through_the_forward_pass() -> None:
    tape = Tape()
    tape.params.append(100 * MIB)
    x = tape.new((), 50 * MIB, 4, grad=False)
    tape.inputs.append(x.store)
    y = tape.new((), 50 * MIB, 4)
    tape.op((x,), y, saved=(x,), params=(0,))
    tape.close()
    plan = StepPlan(states=0, temporaries=0, cublas_workspace=0)
    freed, kept = replay(tape, plan), replay(tape, plan._replace(keeps_gradients=True))
    assert kept.stats.peak_allocated > freed.stats.peak_allocated


def test_before_2_0_an_optimizer_holds_two_results_of_one_parameter() -> None:
    tape = Tape()
    tape.params += [100 * MIB] * 4
    tape.close()
    plan = StepPlan(states=0, temporaries=1, cublas_workspace=0)
    together, apart = replay(tape, plan), replay(tape, plan._replace(foreach=False))
    assert together.stats.peak_allocated - apart.stats.peak_allocated == 200 * MIB


def test_before_2_0_attention_in_a_text_holds_its_matrix() -> None:
    name = "gpt2.txt"
    new, old = text(name, "2.6", batch_size=8), text(name, "1.13", batch_size=8)
    assert old.parts["activations"] > 1.1 * new.parts["activations"]


def test_before_2_0_a_known_model_with_attention_is_estimated_from_its_text() -> None:
    new = estimate(EXAMPLES / "gpt2.txt", gpu="h200", torch="2.6", batch_size=8)
    old = estimate(EXAMPLES / "gpt2.txt", gpu="h200", torch="1.13", batch_size=8)
    assert (new.estimator, old.estimator) == ("trace", "corrected")
    assert old.parts["activations"] > new.parts["activations"]
    assert not any("fused" in line for line in old.warnings)


@pytest.mark.parametrize(
    ("capability", "torch", "mib"),
    [
        ("9.0", "2.11", 32),
        ("9.0", "", 32),
        ("9.0", "1.13", 4),
        ("8.0", "1.13", 4),
        ("8.0", "2.0", 8.125),
        ("8.0", "2.12", 8.125),
        ("10.0", "2.11", 8.125),
        ("10.0", "2.12", 32),
        ("12.0", "2.11", 8.125),
        ("12.0", "", 32),
    ],
)
def test_cublas_workspaces_follow_architecture_and_version(capability: str, torch: str, mib: float) -> None:
    assert cublas_workspace_bytes(capability, torch) == mib * MIB


def test_a_workspace_that_a_site_wrote_down_is_not_replaced() -> None:
    written = find_gpu("b200", NOWHERE)._replace(cublas_workspace_bytes=12345)
    assert gpu_in_version(written, "2.6").cublas_workspace_bytes == 12345
    assert gpu_in_version(find_gpu("b200", NOWHERE), "2.6").cublas_workspace_bytes == 8.125 * MIB


def test_the_version_and_how_it_is_known_are_said() -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    gpu = find_gpu("h200", NOWHERE)
    old = " ".join(assumptions(summary, TrainingJob(batch_size=8, torch="1.13"), gpu))
    assert "as PyTorch 1.13 does: zero_grad() keeps the gradients through the forward pass (traced)" in old
    assert "foreach optimizer" not in old
    assert differences("2.0.1", attention=True) == ()
    assert differences("", attention=True) == ()
    assert "attention holds its whole matrix" in " ".join(differences("1.13.1", attention=True))


def test_a_trace_of_the_same_version_stays_as_it_is() -> None:
    trace = small_summary().trace
    assert trace is not None
    assert in_version(trace, "2.6") == (trace, ())
    older, _ = in_version(trace, "1.13")
    assert older.job.torch == "1.13"
    assert in_version(older, "1.13") == (older, ())


# In a process of its own: tracing registers operators, and pytest's process stays without torch.
SCRIPT = """
import json
import torch
from torch import nn
from slurm_gpumem import estimate, summarize
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.estimator import in_version
from slurm_gpumem.estimators.traced.replay import replay

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(256, 768), nn.Linear(256, 100)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 64).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(y.transpose(1, 2).reshape(x.shape).mean(1))

def build():
    return nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(40)])

def traced(optimizer):
    return summarize(build(), torch.zeros(4096, 512), batch_size=4096, optimizer=optimizer)

def peaks(trace):
    stats = replay(trace, None, find_gpu("h200")).stats
    return [stats.peak_allocated, stats.peak_reserved]

plain = traced("adam")
changed, said = in_version(plain.trace, "1.13")
attends = summarize(Attends(), torch.zeros(8, 128, 256), batch_size=8)
warned = estimate(attends, torch="1.13").warnings
zero_grad = torch.optim.Optimizer.zero_grad
torch.optim.Optimizer.zero_grad = lambda self, set_to_none=False: zero_grad(self, set_to_none)
old = traced(lambda p: torch.optim.Adam(p, foreach=False))
print(json.dumps({"plain": peaks(plain.trace), "changed": peaks(changed), "old": peaks(old.trace),
                  "said": said, "warned": warned}))
"""


@needs_torch
def test_a_trace_changed_to_1_13_takes_what_a_trace_under_its_settings_takes() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Dict[str, Any] = json.loads(done.stdout)
    assert found["changed"][0] == pytest.approx(found["old"][0], rel=0.01)
    assert found["changed"][1] == pytest.approx(found["old"][1], rel=0.03)
    assert found["changed"][0] != pytest.approx(found["plain"][0], rel=0.02)
    assert found["said"] == []
    assert any("fused attention kernels" in line for line in found["warned"])
