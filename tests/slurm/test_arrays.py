"""What Slurm has of arrays: who waits for a first task, and who runs as one."""

from __future__ import annotations

from typing import Dict, List

import pytest

from slurm_gpumem.report.arrays import Queued, queued_arrays
from tests.support.fake_slurm import FakeSlurm

HELD, SHARED = "gpumem/1:shards=0,fp=s0123,hold=0,host=cpus", "gpumem/1:est=9000,shards=10,fp=s0123,hold=0"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([f"7_0|RUNNING|{HELD}", f"7_[1-9,20%1]|PENDING|mine {HELD}"], {7: Queued(10, True, ("7_0",))}),
        # Measured: what waits has a share, and the array its own limit.
        ([f"7_0|RUNNING|{HELD}", f"7_1|RUNNING|{SHARED}", f"7_[2-9:2%15]|PENDING|{SHARED}"],
         {7: Queued(4, False, ("7_0",))}),
        # Nobody was steady in time: all may start.
        ([f"7_0|RUNNING|{HELD}", f"7_1|RUNNING|{HELD}", f"7_[2-9]|PENDING|{HELD}"],
         {7: Queued(8, False, ("7_0", "7_1"))}),
        # A task that was requeued has a row of its own.
        ([f"7_3|PENDING|{SHARED}", f"7_[4,5]|PENDING|{SHARED}", "8_1|RUNNING|(null)"],
         {7: Queued(3), 8: Queued()}),
        # No array; another's limit of one; comments that pose as rows; more than can be.
        (["9|RUNNING|gpumem/1:hold=0", "", "9_[1-2%1]|PENDING|a|9_0|RUNNING", "x_1|RUNNING|",
          "9_[1-999999999]|PENDING|", "9_[5-1]|PENDING|"], {9: Queued(2)}),
    ],
)  # fmt: skip
def test_pending_tasks_are_counted_and_whole_gpus_of_unknown_ones_named(
    rows: List[str], found: Dict[int, Queued]
) -> None:
    assert queued_arrays(FakeSlurm({"squeue -t PENDING,RUNNING": "\n".join(rows)})) == found
