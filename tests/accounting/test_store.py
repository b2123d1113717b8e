"""What the store answers: folded jobs, filters, sums that agree with the jobs they are of."""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

import pytest

from slurm_gpumem.accounting.sums import percentiles
from slurm_gpumem.accounting.types import GROUPS, Filters
from slurm_gpumem.report.job import detail_json, job_lines
from tests.accounting.job_records import DAY, NOON, UUID, opened, record, write
from tests.accounting.test_index import drawn_records
from tests.support.other_user import as_user, own, user_id, user_python


def test_a_requeued_job_is_one_row_with_all_its_runs(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    first = {"end": NOON + 60, "exit_code": 1, "state": None, "peak_mib": 13_300.0, "met": [7]}
    write(spool, record(1, **first))
    claim = {"retry": "1", "was": "13", "why": "oom", "whole": "1"}
    again = {"start": NOON + 200, "end": NOON + 3800, "peak_mib": 17_000.0, "shards": None, "limit_mib": None}
    write(spool, record(1, restarts=1, claim=claim, met=[9], **again))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.attempts, row.ooms, row.recovered, row.state) == (2, 1, True, "COMPLETED")
        assert (row.peak_mib, row.oom_limit_mib, row.start) == (17_000, 13_312, NOON)
        assert (row.run_s, row.gpu_s, row.companions) == (3660.0, 3660.0, (7, 9))
        assert row.error == pytest.approx(11_900 / 17_000 - 1)
        total = store.summary()
        assert (total.jobs, total.ooms, total.oom_recovered, total.oom_lost, total.under_request) == (
            1,
            1,
            1,
            0,
            1,
        )
        detail = store.detail(row)
        assert [(run.restarts, run.oom) for run in detail.runs] == [(0, False), (1, False)]
        assert detail.runs[0].stays[0].curve is not None


@pytest.mark.parametrize("late", [False, True], ids=["the node knew", "only Slurm knew"])
def test_an_error_in_the_log_of_a_job_that_succeeds_is_no_out_of_memory(tmp_path: Path, late: bool) -> None:
    from slurm_gpumem.accounting import sacct
    from slurm_gpumem.slurm.state.sacct import SlurmRow

    known = {"state": None, "exit_code": None} if late else {"state": None, "exit_code": 0}
    write(tmp_path / "spool", record(1, verdict="oom", **known))
    slurms = SlurmRow(1, "site", "usr1", "", "", "gpu", "COMPLETED", NOON, NOON, NOON, NOON + 3600, "")
    with opened(tmp_path) as store:
        if late:
            assert store.summary().ooms == 1
            assert sacct.apply(store.connection, [1], [slurms]) == 1
        (row,) = store.select()
        total = store.summary()
        assert (row.ooms, row.recovered, row.oom_limit_mib) == (0, False, None)
        assert (total.ooms, total.oom_recovered, total.oom_lost, total.under_request) == (0, 0, 0, 0)


def test_a_comment_cannot_turn_a_run_that_succeeded_into_an_out_of_memory(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    write(tmp_path / "spool", record(1, restarts=1, claim={"why": "oom"}))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.ooms, row.attempts, store.summary().ooms) == (0, 2, 0)


def test_runs_on_a_node_that_failed_are_counted_and_named(tmp_path: Path) -> None:
    """The second run's record stayed on its node; the first one's was never closed."""
    write(tmp_path / "spool", record(1, node="n1", end=None, state=None, exit_code=None))
    write(tmp_path / "spool", record(1, node="n3", restarts=2, start=NOON + 7200, end=NOON + 9000))
    write(tmp_path / "spool", record(2, restarts=1, start=NOON + 7200, end=NOON + 9000))
    with opened(tmp_path) as store:
        first, second = store.select()
        assert (first.attempts, first.state, first.gpu_s) == (3, "COMPLETED", 1800.0)
        assert second.attempts == 2
        lines = job_lines(store.detail(first), 1024, unicode=True)
        assert any(line.startswith("  run 1 on n1, ") and "did not record the end" in line for line in lines)
        assert any(line.startswith("  no record of run 2: its node failed") for line in lines)
        assert any(line.startswith("  run 3 on n3, ") and "COMPLETED" in line for line in lines)
        lines = job_lines(store.detail(second), 1024, unicode=True)
        assert any(line.startswith("  no record of run 1: ") for line in lines)


def test_what_else_the_gpu_did_stands_in_the_job_s_own_view(tmp_path: Path) -> None:
    table = record(1)
    table["gpu"][UUID].update(
        gpu_tensor_active=0.41, gpu_pcie_tx_mib_s=310.0, gpu_pcie_rx_mib_s=1250.0, gpu_nvlink_tx_mib_s=None
    )
    write(tmp_path / "spool", table)
    write(tmp_path / "spool", record(2))
    with opened(tmp_path) as store:
        first, older = (store.detail(row) for row in store.select())
    text = "\n".join(job_lines(first, 1024, unicode=False))
    assert "  the whole GPU: tensor cores 41%, PCIe out 310M/s, in 1.2G/s\n" in text
    (gpu,) = detail_json(first, 1024)["runs"][0]["gpus"]
    means = {"sm_active": 0.8, "tensor_active": 0.41, "pcie_tx_mib_s": 310.0, "pcie_rx_mib_s": 1250.0}
    assert gpu["gpu_means"] == means
    assert "the whole GPU:" not in "\n".join(job_lines(older, 1024, unicode=False))


def test_jobs_that_share_a_gpu_share_its_time(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, start=NOON, end=NOON + 7200))
    write(tmp_path / "spool", record(2, start=NOON + 3600, end=NOON + 7200, user="usr2", uid=71002))
    write(tmp_path / "spool", record(3, gpus=[UUID[:-1] + "1"]))
    with opened(tmp_path) as store:
        used = {row.job_id: row.used_s for row in store.select()}
        assert used == {1: 5400.0, 2: 1800.0, 3: 3600.0}
        total = store.summary()
        assert (total.gpu_s, total.used_s) == (14_400.0, 10_800.0)
        assert total.jobs_per_gpu == pytest.approx(4 / 3)


def test_sums_agree_with_the_jobs_they_are_of(tmp_path: Path) -> None:
    for table in drawn_records(90):
        write(tmp_path / "spool", table)
    with opened(tmp_path) as store:
        windows = [
            (None, None),
            (NOON + 3 * DAY, None),
            (None, NOON + 33 * DAY),
            (NOON + DAY, NOON + 50 * DAY),
        ]
        for since, until in windows:
            filters = Filters(since=since, until=until)
            rows = list(store.select(filters))
            total = store.summary(filters)
            errors = [abs(row.error) for row in rows if row.error is not None]
            assert total.jobs == len(rows)
            assert total.estimated == len(errors)
            assert total.median_error == pytest.approx(statistics.median_low(errors), abs=0.001)
            assert total.remembered == sum(row.estimator == "remembered" for row in rows)
            for group in GROUPS:
                groups = store.summary_by(group, filters)
                assert sum(one.jobs for one in groups) == len(rows)
                assert sum(one.used_s for one in groups) == pytest.approx(total.used_s)
        assert store.summary().used_s == pytest.approx(sum(row.used_s or 0 for row in store.select()))
        assert store.summary().would_s == pytest.approx(sum(row.would_s or 0 for row in store.select()))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(users=("usr2",)), [2]),
        (Filters(models=("bert",)), [2]),
        (Filters(states=("FAILED",)), [3]),
        (Filters(partitions=("short",)), [4]),
        (Filters(nodes=("n9",)), [5]),
        (Filters(jobs=(1, 5, 77)), [1, 5]),
        (Filters(since=NOON + 5000), [6, 4]),
        (Filters(until=NOON - 1), [6]),
        (Filters(since=NOON + 3599, until=NOON + 3601), [6, 1, 2, 3, 5]),
        (Filters(users=("usr1",), states=("COMPLETED",)), [1, 5, 4]),
    ],
)
def test_filters_choose_jobs(tmp_path: Path, filters: Filters, expected: list[int]) -> None:
    spool = tmp_path / "spool"
    write(spool, record(1))
    write(spool, record(2, user="usr2", uid=71002, claim={"model": "bert"}))
    write(spool, record(3, state="FAILED", exit_code=1))
    write(spool, record(4, partition="short", start=NOON + 4000, end=NOON + 9000))
    write(spool, record(5, node="n9"))
    write(spool, record(6, user="usr6", start=NOON - 9 * DAY, end=None, state=None))
    with opened(tmp_path) as store:
        assert [row.job_id for row in store.select(filters)] == expected
        assert store.summary(filters).jobs == len(expected)


def test_a_running_job_is_listed_and_counts_for_no_time(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, end=None, state=None, exit_code=None))
    with opened(tmp_path) as store:
        (row,) = store.select()
        assert (row.state, row.gpu_s, row.error) == ("RUNNING", None, None)
        total = store.summary()
        assert (total.jobs, total.gpu_s, total.estimated) == (1, 0.0, 0)


def test_only_jobs_that_ran_to_an_end_tell_of_accuracy(tmp_path: Path) -> None:
    for number, state in enumerate(("COMPLETED", "TIMEOUT", "CANCELLED", "FAILED"), start=1):
        write(tmp_path / "spool", record(number, state=state, peak_mib=500.0))
    with opened(tmp_path) as store:
        assert [row.error is not None for row in store.select()] == [True, True, False, False]
        assert store.summary().estimated == 2


def test_the_reserve_that_held_a_job_is_an_out_of_memory_avoided(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, peak_mib=12_500.0))
    write(tmp_path / "spool", record(2, peak_mib=11_000.0))
    with opened(tmp_path) as store:
        total = store.summary()
        assert (total.oom_avoided, total.under_estimate, total.under_request) == (1, 1, 0)


def test_wasters_are_those_who_keep_the_most_from_others(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, peak_mib=13_000.0))
    write(tmp_path / "spool", record(2, user="usr2", uid=71002, peak_mib=1000.0))
    write(tmp_path / "spool", record(3, user="usr2", uid=71002, peak_mib=5000.0))
    with opened(tmp_path) as store:
        wasters = store.wasters()
    assert [(one.user, one.jobs, one.worst_job) for one in wasters] == [("usr2", 2, 2), ("usr1", 1, 1)]
    assert wasters[0].wasted_mib_s == (2 * 13_312 - 6000) * 3600


def test_percentiles_of_counts_are_those_of_the_values() -> None:
    assert percentiles([(10, 1), (20, 2), (900, 1)], (0.5, 0.75, 0.95)) == (0.02, 0.02, 0.9)
    assert percentiles([], (0.5,)) == (None,)


def test_runs_that_failed_are_no_exclusive_time(tmp_path: Path) -> None:
    hour = 3600.0
    write(tmp_path / "spool", record(1, exit_code=1, state="FAILED", verdict="oom"))
    write(tmp_path / "spool", record(1, restarts=1, start=NOON + hour, end=NOON + 2 * hour))
    write(
        tmp_path / "spool", record(2, exit_code=1, state="FAILED", start=NOON + 3 * hour, end=NOON + 4 * hour)
    )
    total = opened(tmp_path).summary()
    assert (total.gpu_s, total.alone_s) == (3 * hour, hour)
    assert (total.redone, total.redone_s, total.failed_runs, total.failed_s) == (1, hour, 1, hour)
    assert total.saved is None or total.saved <= 0


def test_a_users_own_index_is_not_taken_for_roots(state_folder: Path) -> None:
    """As on a cluster of one's own, whose site's index is one's own: the first look made an empty one."""
    found = user_python()
    if found is None:
        pytest.skip("no Python that another user may start")
    spool = state_folder / "spool"
    spool.mkdir()
    for folder in (state_folder, spool):
        own(folder)
    look = (
        "import pathlib, sys; from slurm_gpumem.accounting.store import open_store\n"
        "from slurm_gpumem.config.accounting import AccountingConfig\n"
        "spool, index = map(pathlib.Path, sys.argv[1:])\n"
        "print(open_store(config=AccountingConfig(spool, spool, index, index), join=False).freshness.records)"
    )
    python, more = found
    env = {**os.environ, **more, "GPUMEM_REMEMBERED": str(state_folder / "remembered.json")}

    def records() -> str:
        argv = [python, "-c", look, str(spool), str(state_folder / "index")]
        return subprocess.run(
            argv, env=env, cwd="/", stdout=subprocess.PIPE, text=True, check=True, **as_user()
        ).stdout.strip()

    assert records() == "0"
    own(write(spool, record(1, uid=user_id())))
    assert records() == "1"


def test_how_far_estimates_are_off_is_a_median_over_models(tmp_path: Path) -> None:
    for number in range(1, 11):
        peak = 11_900.0 * (1.5 if number > 8 else 1.1)
        claim = {"model": f"m{min(number, 9)}"}
        write(tmp_path / "spool", record(number, peak_mib=peak, start=NOON - DAY, claim=claim))
    write(tmp_path / "spool", record(11, peak_mib=99.0, claim={"by": "remembered"}))
    with opened(tmp_path) as store:
        (found,) = store.offsets()
        assert (found.gpu, round(found.part, 3), found.models, found.jobs) == ("a100", 0.1, 9, 10)
