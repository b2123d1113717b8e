"""What a trace says of things that it cannot follow."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.tracing.script import hints
from slurm_gpumem.tracing.script.messages import Advice, explain
from slurm_gpumem.tracing.script.run import Limits, trace_command
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch

pytestmark = needs_torch

LIBRARY = """
import importlib.util
fast = importlib.util.find_spec("triton") is not None
"""
GRAPHED = """
import torch, library
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(8, 64, device="cuda")
model = torch.cuda.make_graphed_callables(model, (x,))
for _ in range(4):
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
STOPS = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
best, waited = 0.5, 0
for epoch in range(50):
    for _ in range(3):
        loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
    waited = 0 if loss.item() < best else waited + 1
    if waited == 4: break
"""
CHANGES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
marks = set(range(100, 1000000, 150))
for step in range(1000000):
    rows = 16 if step in marks else 8
    model(torch.randn(rows, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
SLICED = """
import torch
X = torch.randn(1037, 64, device="cuda")
body, head = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 4).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
for epoch in range(5):
    for at in range(0, len(X), 100):
        head(body(X[at : at + 100])).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_a_short_last_batch_does_no_more_than_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLICED)
    traced = trace_command([sys.executable, "train.py"], Limits(seconds=120), folder=str(tmp_path))
    assert not read_summary(traced.summary.decode()).warnings


def test_what_is_advised_are_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    from slurm_gpumem.cli import gpusbatch
    from slurm_gpumem.cli.commands import trace

    ours, _, gpusbatchs = hints.LONGER.partition("gpusbatch: ")
    helped = [(gpusbatchs, gpusbatch.USAGE), (hints.MEASURED, gpusbatch.USAGE)]
    with pytest.raises(SystemExit):
        trace.main(["--help"])
    for advice, text in [(ours, capsys.readouterr().out), *helped]:
        (option,) = re.findall(r"--[\w-]+", advice)
        assert option in text


def test_epochs_that_a_loss_ends_are_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STOPS)
    traced = trace_command(
        [sys.executable, "train.py"], Limits(seconds=120, onward_s=60.0), folder=str(tmp_path)
    )
    assert_trace_kept("stops", traced)
    ended = "the loop at train.py, line 6, ended itself after 4 of 50 epochs"
    assert any(note.startswith(ended) for note in traced.notes), traced.notes


def test_changes_that_there_is_no_time_for_are_noted_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHANGES)
    command = [sys.executable, "train.py"]
    traced = trace_command(command, Limits(seconds=120, onward_s=2.0), folder=str(tmp_path))
    said = "the loop at train.py, line 6, does something else in more of its rounds than there was time for"
    assert sum(note.startswith(said) for note in traced.notes) == 1, traced.notes


def test_graphs_of_a_model_and_a_library_that_misses_triton_are_noted(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(GRAPHED)
    command = [sys.executable, "train.py"]
    traced = trace_command(command, Limits(seconds=120, onward_s=6.0), folder=str(tmp_path))
    assert any("make_graphed_callables" in note for note in traced.notes)
    missing = importlib.util.find_spec("triton") is None
    assert any(note.startswith("library looked for Triton") for note in traced.notes) == missing


def _look(finder: Any, module: str) -> None:
    code: Dict[str, Any] = {"__name__": module, "finder": finder}
    exec("finder.find_spec('triton')\nfinder.find_spec('numpy')", code)


def test_torch_looks_for_triton_in_any_case_and_others_are_noted_once() -> None:
    from slurm_gpumem.tracing.fake_cuda.packages import _Missing

    notes: List[str] = []
    finder = _Missing(notes.append)
    _look(finder, "torch.utils._triton")
    assert notes == []
    _look(finder, "trl.trainer.losses")
    _look(finder, "peft")
    assert [note.partition(" ")[0] for note in notes] == ["trl"]


def test_nested_tensors_are_named_as_the_reason() -> None:
    state = SimpleNamespace(
        private={},
        stopped="",
        failed="AttributeError: 'NestedIntNode' object has no attribute 'int_'",
        kind="AttributeError",
        passes=0,
        notes=[],
    )
    assert "Nested tensors are not traced" in explain("train.py", state, 1.0, Advice())
