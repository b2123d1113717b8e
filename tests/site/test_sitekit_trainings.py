"""The kit's trainings: each model takes its batch, and the traced script is an ordinary one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from slurm_gpumem.site.kit.trainings import TRAININGS
from tests.support.kept import assert_kept

torch = pytest.importorskip("torch")


def test_there_are_twenty_of_every_sort() -> None:
    plans = TRAININGS.values()
    assert len(TRAININGS) == 20
    assert {plan.half for plan in plans} == {None, "float16", "bfloat16"}
    assert {plan.optimizer for plan in plans} == {"adamw", "adam", "sgd", "momentum"}
    assert any(plan.channels_last for plan in plans)
    assert any(plan.tokens for plan in plans)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_model_takes_its_batch(name: str) -> None:
    plan = TRAININGS[name]
    with torch.device("meta"):
        model = plan.model(torch.nn)
        batch = torch.zeros(plan.batch, dtype=torch.int64 if plan.tokens else torch.float32)
    shown: List[object] = [plan._replace(model=None), sum(map(torch.numel, model.parameters()))]

    def note(module: Any, args: Any, output: Any) -> None:
        shown.append([type(module).__name__, [list(one.shape) for one in output if hasattr(one, "shape")]])

    for module in model.modules():
        module.register_forward_hook(note)
    assert model(batch).ndim == 2
    # Its measured peaks are of this model: another one would make the files of other sites incomparable.
    assert_kept(Path(__file__).with_name("trainings.json"), {name: repr(shown)})


def test_one_is_traced_by_the_products_own_command(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "slurm_gpumem.site.kit.trainings", "recommender"]
    argv = [sys.executable, "-m", "slurm_gpumem", "trace", "--json", "--gpu", "h200", "--", *script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    traced = json.loads(done.stdout)
    # 1,508 MiB on an H200, PyTorch 2.11: mostly the table's weights and gradients.
    assert 1400 <= traced["peak_mib"] <= 1600
    assert traced["facts"]["steps"] == 5
