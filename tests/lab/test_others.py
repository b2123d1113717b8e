"""Estimators of other people on the same jobs: what each counts, and the stored rows' table on its page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from lab.ground_truth import GroundTruth
from lab.others.jobs import EACH, chosen_jobs
from lab.others.score import stored_rows, table
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.allocator.allocator import FREE
from slurm_gpumem.units import MIB

torch = pytest.importorskip("torch")

from lab.others import run, tools, training, xmem  # noqa: E402 - they import torch

PAGE = Path(__file__).parents[2] / "lab" / "docs" / "others.md"
ROW: Dict[str, Any] = {
    "task": "squares",
    "task_args": {"inputs": ["float S"]},
    "size": 2048,
    "batch": 1,
    "optimizer": "adam",
}
WEIGHT = 2048 * 2048 * 4
XMEM = """
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
memory = [e for e in events if e["name"] == "[memory]"]
layers = [e for e in events if e["name"].startswith("nn.Module")]
assert len(steps) == 2 and memory and layers and sys.argv[2:] == ["-b", "1", "-g", "140"]
print("OOM: False\\nEstimated Peak GPU Memory: 80.50 Mb")
"""


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


def test_weights_that_are_shared_stay_shared_in_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    fake: Any = training.as_fake(model, FakeTensorMode())
    assert fake[2].weight is fake[0].weight
    assert isinstance(fake[0].weight, torch.nn.Parameter)
    assert all(isinstance(tensor, FakeTensor) for tensor in fake.state_dict().values())


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


def test_xmem_gets_a_profile_of_two_steps_and_its_answer_is_read(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(XMEM)
    assert xmem.xmem(ROW, tmp_path) == {"reserved_bytes": round(80.5 * MIB)}
    (tmp_path / "main.py").write_text("print('OOM: True')")
    with pytest.raises(UsageError, match="no peak: OOM: True"):
        xmem.xmem(ROW, tmp_path)


def test_xmem_is_asked_only_where_a_checkout_is_named(tmp_path: Path) -> None:
    assert run.XMEM not in run.asked_tools([], None)
    with pytest.raises(UsageError, match="name a checkout"):
        run.asked_tools([run.XMEM], None)
    with pytest.raises(UsageError, match="name a checkout"):
        run.asked_tools([], tmp_path)
    (tmp_path / "main.py").touch()
    assert list(run.asked_tools([run.XMEM], tmp_path)) == [run.XMEM]
