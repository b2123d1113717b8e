"""What is said of several tasks of an array that were traced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict

import pytest

from slurm_gpumem.slurm.submit.gpu_options import ArrayTask
from slurm_gpumem.submission.job_trace.before_submission import _of_tasks


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({3: 5000, 7: 5000}, "of 2 traced tasks, each needs 5,000 MiB"),
        (
            {3: 5000, 7: 9000, 8: 6000},
            "of 3 traced tasks, task 7 needs most (9,000 MiB), task 3 least (5,000 MiB)",
        ),
    ],
)
def test_the_largest_and_the_smallest_are_named_unless_all_need_the_same(
    needs: Dict[int, int], said: str
) -> None:
    chosen = [ArrayTask(number, tuple(needs)) for number in needs]
    found: Any = [SimpleNamespace(estimate=SimpleNamespace(request_mib=mib)) for mib in needs.values()]
    assert _of_tasks(chosen, found) == said
