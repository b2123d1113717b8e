"""A job on several nodes has a record of each, and is one job: its slowest, fullest rank decides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.accounting.remember import remember_own
from slurm_gpumem.accounting.types import Filters
from slurm_gpumem.estimators import remembered
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from tests.accounting.job_records import NOON, UUID, opened, record, write

SUMMARY = read_summary((Path(__file__).parents[2] / "docs" / "examples" / "small-cnn.txt").read_text())


def rank(root: Path, node: str, **changes: Any) -> None:
    """The record of one rank; figures of its GPU among the changes."""
    uuid = UUID[:-1] + node[-1]
    names = ("slowed_s", "alone_by", "alone_sm", "sm_active_share")
    figures: Dict[str, Any] = {
        "number": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40_960, "gpu_sm_active": 0.8,
        **{name: changes.pop(name) for name in names if name in changes},
    }  # fmt: skip
    table = {"job_id": 7, "uid": os.geteuid(), "node": node, "gpus": [uuid], **changes}
    claim = {"fp": SUMMARY.fingerprint, "more": "ddp2"}
    write(root / "spool", record(claim=claim, gpu={uuid: figures}, **table))


def test_it_is_one_row_with_the_largest_peak_and_the_gpus_of_all_nodes(tmp_path: Path) -> None:
    rank(tmp_path, "n2", peak_mib=9000.0, energy_j=100.0)
    rank(tmp_path, "n1", peak_mib=5000.0, energy_j=50.0)
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.peak_mib, row.energy_j, row.shards, row.run_s) == (9000, 150.0, 13, 3600.0)
        assert [device.node for device in row.devices] == ["n1", "n2"]
        assert row.gpu_s == 7200.0
        for node in ("n1", "n2"):
            there = Filters(nodes=(node,))
            assert [found.job_id for found in store.select(there)] == [7]
            assert store.summary(there).jobs == 1
        total = store.summary()
    assert (total.jobs, total.gpu_s) == (1, 7200.0)
    assert total.granted_mib_s == 2 * 13_312 * 3600.0
    assert total.peak_mib_s == (9000 + 5000) * 3600.0


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_what_neighbours_cost_the_slowest_rank_they_cost_the_job(tmp_path: Path, first: str) -> None:
    costs: Dict[str, Any] = {
        "n1": {"met": []},
        "n2": {"met": [9], "slowed_s": 1800.0, "alone_by": "measured"},
    }
    for node in (first, "n1", "n2"):
        rank(tmp_path, node, **costs[node])
        opened(tmp_path).close()
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.slowdown, row.companions) == (2.0, (9,))
        assert store.summary().alone_s == 2 * 1800.0


def test_a_run_that_ran_out_on_two_nodes_counts_once(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        rank(tmp_path, node, end=NOON + 60, exit_code=1, state=None, verdict="oom")
        rank(tmp_path, node, restarts=1, start=NOON + 100, end=NOON + 200, shards=26)
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.attempts, row.ooms, row.run_s) == (2, 1, 160.0)
        total = store.summary()
    assert (total.ooms, total.redone, total.oom_recovered) == (1, 1, 1)


def test_the_busiest_rank_is_what_the_job_is_remembered_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUMEM_REMEMBERED", str(tmp_path / "remembered.json"))
    rank(tmp_path, "n1", peak_mib=5000.0, alone_sm=0.3, sm_active_share=0.3)
    rank(tmp_path, "n2", peak_mib=9000.0, alone_sm=0.7, sm_active_share=0.6)
    with opened(tmp_path) as store:
        assert [row.sm_share for row in store.select()] == [0.6]
        assert remember_own(store.connection) is None
    job = TrainingJob(batch_size=128, gpus=2)
    assert remembered.recall(SUMMARY, job, find_gpu("a100")) == (9000,)
    assert remembered.recall_activity(SUMMARY, job, find_gpu("a100")) == (70,)
