"""Estimators of other people on the same jobs: what each counts, and the stored rows' table on its page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from lab.ground_truth import GroundTruth
from lab.others.jobs import EACH, chosen_jobs
from lab.others.score import stored_rows, table
from slurm_gpumem.estimators.allocator.allocator import FREE

torch = pytest.importorskip("torch")

from lab.others import tools, xmem  # noqa: E402 - they import torch

PAGE = Path(__file__).parents[2] / "lab" / "docs" / "others.md"
ROW: Dict[str, Any] = {
    "task": "squares",
    "task_args": {"inputs": ["float S"]},
    "size": 2048,
    "batch": 1,
    "optimizer": "adam",
}
WEIGHT = 2048 * 2048 * 4


@pytest.fixture(autouse=True)
def one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tools, xmem):
        monkeypatch.setattr(module, "built", lambda row: torch.nn.Linear(2048, 2048, bias=False))


def test_the_table_on_the_page_is_what_the_command_prints(ground_truth: GroundTruth) -> None:
    truth = chosen_jobs(ground_truth)
    assert 60 <= len(truth.runs) <= 3 * EACH
    assert len({run.row["model"] for run in truth.runs}) == len(truth.runs)
    page = PAGE.read_text(encoding="utf-8")
    for line in table(stored_rows(), truth):
        assert line in page


@pytest.mark.parametrize("tool", [tools.fake_tensors, tools.mem_tracker, tools.veritas_est])
def test_weights_gradients_and_both_states_are_counted(tool: Any) -> None:
    """Adam's step on a GPU has up to three lists of temporaries beside them."""
    assert 4 * WEIGHT < tool(ROW)["reserved_bytes"] < 8 * WEIGHT


def test_what_an_operator_frees_before_it_ends_is_left_out() -> None:
    def event(name: str, start: int, end: int, children: List[Any] = [], **fields: int) -> Any:  # noqa: B006
        typed = (SimpleNamespace(name=name), SimpleNamespace(**fields))
        return SimpleNamespace(typed=typed, start_time_ns=start, end_time_ns=end, children=children)

    own = event("Allocation", 2, 2, alloc_size=100, ptr=7)
    out = event("Allocation", 3, 3, alloc_size=50, ptr=8)
    own_end = event("Allocation", 4, 4, alloc_size=-100, ptr=7)
    inner = event("TorchOp", 2, 3, [own])
    operator = event("TorchOp", 1, 5, [inner, out, own_end])
    later = [
        event("Allocation", 6, 6, alloc_size=-50, ptr=8),
        event("Allocation", 7, 7, alloc_size=-9, ptr=1),
    ]
    found = tools.memory_events([operator, *later])
    assert [size for _, size in found] == [50, FREE]
    assert found[0][0] == found[1][0]


XMEM = """
import json


class Estimator:
    def __init__(self, profiler_file, max_gpu_memory_in_gb):
        with open(profiler_file) as file:
            self.names = [event.get("name", "") for event in json.load(file)["traceEvents"]]

    def estimate(self, target_iteration):
        wanted = ("ProfilerStep#", "Optimizer.step#", "nn.Module: _Loss", "[memory]", "aten::to")
        least = min(sum(name.startswith(one) for name in self.names) for one in wanted)
        steps = sum(name.startswith(wanted[0]) for name in self.names)
        return None, {"OOM": least < target_iteration, "memory": {"segment": steps}}
"""


def test_xmem_reads_two_steps_with_the_loss_as_a_module_and_the_data_as_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "perf_estimator"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "estimator.py").write_text(XMEM)
    monkeypatch.syspath_prepend(tmp_path)
    assert xmem.xmem({**ROW, "source": "timm"}, tmp_path) == {"reserved_bytes": 2}
    for name in ("perf_estimator", "perf_estimator.estimator"):
        monkeypatch.delitem(sys.modules, name)
