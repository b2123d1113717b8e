"""Summaries for jobstats: which jobs get one, and which comments are left alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from slurm_gpumem.accounting import sacct
from slurm_gpumem.accounting.jobstats import Written, write_summaries
from slurm_gpumem.accounting.store import Store
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.jobstats import read_summary
from slurm_gpumem.slurm.state.sacct import parse_runs
from tests.accounting.job_records import UUID, opened, record, write
from tests.accounting.test_sacct import answer, new_job
from tests.support.fake_slurm import FakeSlurm

NOW = time.time()
ALLOCATED = [{"type": kind, "count": count} for kind, count in (("cpu", 8), ("mem", 16_000), ("node", 1))]
USED = {"requested": {"total": [{"type": "mem", "count": 5 << 30}]}}


def job(comment: str = "", **changes: Any) -> Dict[str, Any]:
    times = {"submission": NOW - 900, "start": int(NOW - 600), "end": int(NOW - 100)}
    spent = {"seconds": 1000, "microseconds": 500_000}
    about = {
        "tres": {"allocated": ALLOCATED},
        "steps": [{"tres": USED}],
        "comment": {"administrator": comment},
    }
    return {**new_job(), "time": {**times, "total": spent}, **about, **changes}


class Accounting:
    """slurmdbd with one job."""

    def __init__(self, store: Store, known: Dict[str, Any], version: str = "slurm 24.11.5") -> None:
        self.store, self.set, self.known = store, [], known  # type: ignore[var-annotated]
        sacct.apply(store.connection, [1], parse_runs(answer(known)))
        self.slurm = FakeSlurm(
            {"sinfo --version": version, "sacct --json": lambda _: answer(self.known), "sacctmgr": self._set}
        )

    def _set(self, argv: Sequence[str]) -> str:
        self.set.append(list(argv))
        return " Modified jobs...\n  1 submitted"

    def write(self) -> Written:
        return write_summaries(self.store, budget_s=60, client=self.slurm)

    @property
    def comments(self) -> List[str]:
        return [argv[-1].partition("=")[2] for argv in self.set]


def one_run(**changes: Any) -> Dict[str, Any]:
    return record(1, **{"start": NOW - 600, "end": NOW - 100, "met": [2], **changes})


def test_a_shared_job_gets_its_share_and_its_own_use_once(tmp_path: Path) -> None:
    write(tmp_path / "spool", one_run())
    with opened(tmp_path) as store:
        slurm = Accounting(store, job("gpumem/1:was=--gpus=1"))
        assert slurm.write() == Written(1, 0)
        assert slurm.write() == Written(0, 0)
    (argv,) = slurm.set
    assert argv[:-1] == ["sacctmgr", "-i", "modify", "job", "where", "jobid=1", "set"]
    (comment,) = slurm.comments
    assert read_summary(comment) == {
        "nodes": {
            "n1": {
                "total_memory": 16_000 << 20,
                "used_memory": 5 << 30,
                "total_time": 1000.5,
                "cpus": 8,
                "gpu_total_memory": {"0": 13_312 << 20},
                "gpu_used_memory": {"0": 11_600 << 20},
                "gpu_utilization": {"0": 40.0},
            }
        },
        "total_time": 500,
        "gpus": 1,
        "gpumem": "gpumem/1:was=--gpus=1",
    }


def test_a_task_of_an_array_is_named_as_one_so_that_its_sisters_keep_their_own(tmp_path: Path) -> None:
    write(tmp_path / "spool", one_run(array_job=1, array_task=3))
    with opened(tmp_path) as store:
        slurm = Accounting(store, job())
        assert slurm.write().jobs == 1
    assert "jobid=1_3" in slurm.set[0]


@pytest.mark.parametrize("comment", ["JS1:Short", "JS1:H4sIAAAA", "an admin's note"])
def test_what_jobstats_wrote_and_what_would_not_survive_is_left(tmp_path: Path, comment: str) -> None:
    write(tmp_path / "spool", one_run())
    with opened(tmp_path) as store:
        slurm = Accounting(store, job(comment))
        assert slurm.write() == Written(0, 1)
        assert slurm.set == []


@pytest.mark.parametrize(
    "known",
    [{"steps": []}, {"tres": {"allocated": [*ALLOCATED[:2], {"type": "node", "count": 2}]}}, {"tres": None}],
    ids=["host memory not measured", "a node's record is missing", "nothing known"],
)
def test_there_is_no_half_summary(tmp_path: Path, known: Dict[str, Any]) -> None:
    write(tmp_path / "spool", one_run())
    with opened(tmp_path) as store:
        slurm = Accounting(store, job(**known))
        assert slurm.write() == Written(0, 0)
        assert slurm.set == []


def test_a_gpu_of_its_own_is_summed_up_as_jobstats_does(tmp_path: Path) -> None:
    gpu = {
        "number": 1,
        "memory_mib": 40_960,
        "peak_mib": 9000,
        "sm_active_share": 0.2,
        "gpu_utilization": 0.9,
    }
    write(tmp_path / "spool", one_run(met=[], shards=None, limit_mib=None, gpu={UUID: gpu}))
    with opened(tmp_path) as store:
        slurm = Accounting(store, job())
        assert slurm.write().jobs == 1
    table = read_summary(slurm.comments[0])
    assert table is not None
    node = table["nodes"]["n1"]
    assert (node["gpu_total_memory"], node["gpu_utilization"]) == ({"1": 40_960 << 20}, {"1": 90.0})


def test_a_sacctmgr_that_would_destroy_it_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "spool", one_run())
    with opened(tmp_path) as store:
        slurm = Accounting(store, job(), "slurm 22.05.8")
        with pytest.raises(SlurmError, match=r"before Slurm 23\.02"):
            slurm.write()
        assert slurm.set == []
