"""A training around somebody's model code: what it may do, and what is said of what it may not.

A case is traced when the first test asks for it: each needs an interpreter with torch of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Union

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.tracing.model.request import trace_code
from slurm_gpumem.tracing.model.spec import TraceRequest, parse_input, parse_target
from slurm_gpumem.tracing.script.run import Limits, TracedScript
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

CODE = """
import os, subprocess, sys, time, urllib.request
import torch
from torch import nn

@torch.library.custom_op("gpumemtest::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-1)

scan.register_autograd(lambda ctx, gradient: torch.ops.gpumemtest.scan(gradient))

class Net(nn.Module):
    def __init__(self, scans=False):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)
        self.scans = scans

    def forward(self, x):
        x = self.first(x)
        if self.scans:
            x = torch.ops.gpumemtest.scan(x)
        return self.last(x)

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("edges", torch.rand(8, 8))

    def forward(self, x):
        return self.edges @ self.layer(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x).relu()

def blocks():
    return nn.Sequential(Block(), Block())

def friendly():
    print("printed by the model's code")
    assert torch.cuda.is_available()
    with torch.cuda.device(0):
        torch.cuda.synchronize()
    marker = os.environ["GPUMEM_TEST_MARKER"]
    subprocess.Popen(["setsid", "sleep", marker])
    if os.fork() == 0:
        return None
    return Net().cuda().to("cuda:0")

def unknown():
    return Net(scans=True)

def exits():
    sys.exit("no data set found")

def hard_exit():
    os._exit(7)

def downloads():
    return urllib.request.urlopen("https://example.org/weights.pth")

def step(model, batch, optimizer):
    images, classes = batch
    loss = nn.functional.cross_entropy(model(images.cuda()), classes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

def batch(size):
    return torch.zeros(size, 64), torch.zeros(size, dtype=torch.int64)
"""

CASES = {
    "friendly": ("64", ""),
    "unknown": ("64", ""),
    "exits": ("64", ""),
    "hard_exit": ("64", ""),
    "downloads": ("64", ""),
    "Net": ("65", ""),
    "own step": ("", "Net"),
    "Graph": ("64", ""),
    "blocks": ("64", ""),
}

Outcome = Union[TracedScript, TargetError]
Outcomes = Dict[str, "Future[Outcome]"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    script = tmp_path_factory.mktemp("model") / "train.py"
    script.write_text(CODE)
    os.environ["GPUMEM_TEST_MARKER"] = f"98{os.getpid()}"

    def run(case: str) -> Outcome:
        shape, function = CASES[case]
        own = bool(function)
        request = TraceRequest(
            target=parse_target(f"{script}:{function or case}"),
            batch_size=8,
            inputs=(parse_input(shape),) if shape else (),
            batch_callable=parse_target(f"{script}:batch") if own else None,
            step_callable=parse_target(f"{script}:step") if own else None,
            checkpointing=case == "blocks",
        )
        try:
            return trace_code(request, Limits(seconds=400))
        except TargetError as error:
            return error

    with OnDemand() as pool:
        return {case: pool.submit(run, case) for case in CASES}


def _traced(asked: Future[Outcome]) -> TracedScript:
    outcome = asked.result()
    assert isinstance(outcome, TracedScript), outcome
    return outcome


def test_code_that_prints_forks_and_uses_cuda_is_traced(outcomes: Outcomes) -> None:
    summary = read_summary(_traced(outcomes["friendly"]).summary.decode())
    assert summary.total_params == 64 * 64 + 64 + 640 + 10
    assert summary.batch == 8


def test_children_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CODE)
    with subprocess.Popen(["sleep", "300"]) as mine:
        try:
            request = TraceRequest(target=parse_target(f"{script}:exits"), batch_size=8)
            with pytest.raises(TargetError):
                trace_code(request, Limits(seconds=400))
            assert mine.poll() is None
        finally:
            mine.kill()


def test_no_process_stays_behind(outcomes: Outcomes) -> None:
    _traced(outcomes["friendly"])
    marker = os.environ["GPUMEM_TEST_MARKER"].encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert marker not in process.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            pass  # ended while we looked


def test_an_unknown_operator_is_named_with_what_was_assumed(outcomes: Outcomes) -> None:
    traced = _traced(outcomes["unknown"])
    summary = read_summary(traced.summary.decode())
    (said,) = summary.warnings
    assert "gpumemtest::scan" in said
    assert "as large as its first input" in said
    trace = summary.trace
    assert trace is not None
    assert any("gpumemtest::scan" in remark for remark in trace.remarks)


def test_a_training_step_of_the_users_own_is_traced(outcomes: Outcomes) -> None:
    trace = read_summary(_traced(outcomes["own step"]).summary.decode()).trace
    assert trace is not None
    assert {phase.name for phase in trace.phases} >= {"forward", "backward", "optimizer"}


def test_a_model_for_one_batch_size_is_traced_for_that_one(outcomes: Outcomes) -> None:
    trace = read_summary(_traced(outcomes["Graph"]).summary.decode()).trace
    assert trace is not None
    assert not trace.scalable
    assert max(phase.step for phase in trace.phases) == 2, "the step at twice the batch failed"


def test_layers_that_a_checkpoint_computes_again_are_listed_once(
    outcomes: Outcomes,
) -> None:
    summary = read_summary(_traced(outcomes["blocks"]).summary.decode())
    assert [layer.name for layer in summary.layers] == ["", "0", "0.layer", "1", "1.layer"]
    assert summary.trace is not None
    assert summary.trace.job.checkpointing
    assert summary.trace.scalable


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("exits", r"called sys.exit saying: no data set found while building the model.\ntrain.py, line \d+"),
        ("hard_exit", r"the process ended with code 7 while building the model"),
        ("downloads", r"tried to download.*\ntrain.py, line \d+, in downloads"),
        (
            "Net",
            r"does not run with this input.\ntrain.py, line \d+, in forward: x = self.first\(x\)\n"
            r"RuntimeError: .*\nIt was called with \[8, 65\]",
        ),
    ],
    ids=["exits", "hard exit", "downloads", "wrong input"],
)
def test_what_goes_wrong_is_told_with_the_line_of_the_users_file(
    outcomes: Outcomes, case: str, said: str
) -> None:
    outcome = outcomes[case].result()
    assert isinstance(outcome, TargetError), outcome
    assert re.search(said, str(outcome)), str(outcome)
    assert "Traceback" not in str(outcome)
