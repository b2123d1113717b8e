from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, List, Optional

import pytest

from slurm_gpumem.accounting.record_files import RECORD_NAME
from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import (
    FaultEvent,
    JobRecord,
    Measurement,
    job_record_table,
    measurement_from,
    write_job_record,
)
from slurm_gpumem.formats.live import GpuSample, Live, LiveJob, live_from, live_table
from slurm_gpumem.node import hook, records
from slurm_gpumem.node.jobs import NodeJob, valid_job_id
from slurm_gpumem.node.mps.mps_blocklist import Fault, FaultLog, Loss
from slurm_gpumem.node.sampler.enforcer import Watch
from slurm_gpumem.node.sampler.usage import GpuUsage, JobUsage, Stretch, usage_from
from slurm_gpumem.slurm.state.queue import JOB_NAME, SlurmJob
from tests.node.conftest import REPOSITORY, Node

JOB = NodeJob(
    7, 65534, "nobody", ("GPU-aa",), "mps", 100.0, claim=CommentRecord(estimate_mib=7000, request_mib=8192)
)


def closed(status: str = "1:0", **measured: Any) -> JobRecord:
    record = records.with_measurement(records.open_record(JOB, "n1"), Measurement(**measured), ())
    return records.closed_record(record, end=160.0, status=status)


def xid(number: int, *others: int) -> FaultEvent:
    return FaultEvent("xid", "GPU-aa", 159.0, others, number)


def mps_fault(*others: int) -> FaultEvent:
    return FaultEvent("mps-fault", "GPU-aa", 159.0, others)


def test_what_nobody_measured_is_null_not_zero() -> None:
    table = job_record_table(records.open_record(JOB, "n1"))
    assert table["claim"] == "gpumem/1:est=7000,req=8192"
    for key in ("peak_mib", "mean_mib", "energy_j", "shards", "limit_mib", "end", "exit_code", "verdict"):
        assert table[key] is None


@pytest.mark.parametrize(
    ("status", "code", "signal"), [("0:0", 0, 0), ("1:0", 1, 0), ("0:9", 0, 9), ("", None, None)]
)
def test_the_exit_code_is_slurms(status: str, code: object, signal: object) -> None:
    record = closed(status)
    assert (record.exit_code, record.signal) == (code, signal)


@pytest.mark.parametrize(
    ("usage", "hints"),
    [
        ({"peak_mib": 8000.0, "limit_mib": 8192}, ["near-limit"]),
        ({"peak_mib": 3000.0, "limit_mib": 8192}, []),
        ({"peak_mib": None, "limit_mib": 8192}, []),
        ({"events": (mps_fault(8),)}, ["neighbour-fault"]),
        ({"events": (xid(31, 8),)}, ["neighbour-fault"]),
        ({"events": (xid(31),)}, ["own-fault"]),
        ({"events": (mps_fault(),)}, ["own-fault"]),
        ({"events": (xid(79, 8),)}, ["gpu-fault"]),
        ({"events": (xid(94),)}, ["gpu-fault"]),
        (
            {"peak_mib": 8190.0, "limit_mib": 8192, "events": (mps_fault(8),)},
            ["near-limit", "neighbour-fault"],
        ),
    ],
)  # fmt: skip
def test_hints_tell_a_neighbours_fault_from_too_little_memory(
    usage: dict[str, Any], hints: list[str]
) -> None:
    assert closed("1:0", **usage).hints == tuple(hints)
    assert closed("0:0", **usage).hints == ()


@pytest.mark.parametrize(
    ("before", "now", "hints"),
    [
        ([8], [9], ["own-fault"]),
        ([8], [8, 9], ["neighbour-fault", "repeated-fault"]),
        ([8], [], ["own-fault"]),
        (None, [8], ["neighbour-fault"]),
    ],
)
def test_a_job_that_faults_again_in_other_company_did_it_itself(
    tmp_path: Path, before: Optional[List[int]], now: List[int], hints: List[str]
) -> None:
    write_job_record(tmp_path, closed("1:0", events=() if before is None else (xid(31, *before),)))
    write_job_record(tmp_path, closed("1:0")._replace(restarts=1, node="n2"))
    records.amend_record(tmp_path, 7, 1, "n2", mps_fault(*now))
    assert json.loads((tmp_path / "7.1.n2.json").read_text())["hints"] == hints


def test_another_clusters_job_of_the_same_number_is_no_earlier_run_of_this_one(tmp_path: Path) -> None:
    write_job_record(tmp_path, closed("1:0", events=(xid(31, 8),))._replace(cluster="other"))
    write_job_record(tmp_path, closed("1:0")._replace(restarts=1, node="n2"))
    records.amend_record(tmp_path, 7, 1, "n2", mps_fault(9))
    assert json.loads((tmp_path / "7.1.n2.json").read_text())["hints"] == ["neighbour-fault"]


def test_the_large_job_numbers_of_a_federation_are_read_like_others(tmp_path: Path) -> None:
    number = 63 << 26 | 67_108_863
    assert valid_job_id(str(number)) == number
    assert JOB_NAME.fullmatch(f"{number}_7")
    write_job_record(tmp_path, closed("1:0")._replace(job_id=number))
    (path,) = tmp_path.iterdir()
    assert RECORD_NAME.fullmatch(path.name)
    assert [record.job_id for record in records.read_records(tmp_path, number)] == [number]


def test_the_kernels_pid_is_no_evidence_against_the_process_it_names() -> None:
    """The recorded fault: the line of the driver names the victim, so nothing may be built on it."""
    run = json.loads((REPOSITORY / "lab" / "docs" / "node-life.json").read_text())["parts"]
    line = next(line for line in run["afterwards"]["kernel"] if " Xid " in line)
    match = re.search(r"NVRM: Xid \(PCI:[0-9a-f:.]+\): 31, pid=([0-9]+), name=", line)
    assert match is not None
    pids = run["illegal access"]["pids"]
    assert int(match[1]) == pids["illegal-same"] != pids["illegal-culprit"]
    told = run["illegal access"]["victims"]["illegal-same"]["record_events"]
    events = measurement_from({"events": told}).events
    assert len(events) == len(told) > 0
    for event in events:
        assert closed("1:0", events=(event,)).hints == ("neighbour-fault",)


ENDED = SlurmJob(7, 1000, None, "CANCELLED", array_job=5, array_task=3)


def test_a_state_is_only_put_into_a_record_that_is_closed(tmp_path: Path) -> None:
    write_job_record(tmp_path, closed()._replace(end=None))
    records.amend_end(tmp_path, 0, "n1", ENDED)
    assert next(records.read_records(tmp_path, 7)).state == ""
    write_job_record(tmp_path, closed())
    records.amend_end(tmp_path, 0, "n1", ENDED)
    found = next(records.read_records(tmp_path, 7))
    assert (found.state, found.measured.array_job, found.measured.array_task) == ("CANCELLED", 5, 3)
    records.amend_end(tmp_path, 0, "n1", ENDED._replace(job_id=99))
    assert list(records.read_records(tmp_path, 99)) == []


def test_records_are_found_by_job_and_strange_files_passed_over(tmp_path: Path) -> None:
    write_job_record(tmp_path, closed())
    (tmp_path / "8.0.n1.json").write_text("{torn")
    (tmp_path / "9.0.n1.json").write_text('{"schema": "other/1"}')
    (tmp_path / ".7.0.n1.json.123.tmp").write_text("{")
    assert [record.job_id for record in records.read_records(tmp_path)] == [7]
    assert [record.job_id for record in records.read_records(tmp_path, 7)] == [7]
    assert list(records.read_records(tmp_path, 70)) == []
    assert list(records.read_records(tmp_path / "missing")) == []


def test_an_event_that_comes_late_changes_the_closed_record(tmp_path: Path) -> None:
    write_job_record(tmp_path, closed())
    for others in ((), (8,)):
        records.amend_record(tmp_path, 7, 0, "n1", xid(31, *others))
    record = json.loads((tmp_path / "7.0.n1.json").read_text())
    assert [event["with"] for event in record["events"]] == [[8]]
    assert record["hints"] == ["neighbour-fault"]
    records.amend_record(tmp_path, 99, 0, "n1", xid(31))
    assert not (tmp_path / "99.0.n1.json").exists()


def test_jobs_that_lose_their_processes_with_a_fault_are_told_of_each_other() -> None:
    log = FaultLog()
    log.lost(Loss(7, 1000, 1000, "GPU-aa", 50.0))
    log.lost(Loss(9, 2000, 2000, "GPU-aa", 50.5))
    log.lost(Loss(10, 1000, 1000, "GPU-bb", 50.5))
    assert log.events(50.6) == []
    log.fault(Fault("GPU-aa", 51.0, "xid", 31))
    first = {loss.job_id: event.others for loss, event in log.events(51.0)}
    assert first == {7: (), 9: ()}
    log.lost(Loss(8, 1000, 1000, "GPU-aa", 52.0))
    assert {loss.job_id: event.others for loss, event in log.events(52.0)} == {7: (8,), 8: (7,)}
    assert log.events(53.0) == []
    assert log.events(500.0) == []


def test_a_job_that_ends_long_after_a_fault_has_nothing_to_do_with_it() -> None:
    log = FaultLog()
    log.fault(Fault("GPU-aa", 50.0, "xid", 31))
    log.lost(Loss(7, 1000, 1000, "GPU-aa", 58.0))
    assert log.events(58.0) == []


def test_peaks_are_per_gpu_and_energy_is_split_evenly() -> None:
    usage = JobUsage(0)
    for mib, sharers in ((100.0, 1), (300.0, 2), (200.0, 2)):
        gpu_usage = usage.gpus.setdefault("GPU-aa", GpuUsage())
        gpu_usage.add_memory(mib, 1, 1.0)
        seen = Stretch(GpuSample(sm_active=0.8, power_w=300.0), 1.0, 300.0, sharers, sharers)
        gpu_usage.add_activity(seen, 1, held=True)
    measured = usage.measured()
    assert (measured.peak_mib, measured.mean_mib, measured.energy_j) == (300.0, 200.0, 600.0)
    gpu = measured.gpu["GPU-aa"]
    assert gpu.sm_active_share == pytest.approx((0.8 + 0.4 + 0.4) / 3, abs=1e-4)
    assert gpu.gpu_sm_active == 0.8
    assert gpu.gpu_dram_active is None


def test_a_process_whose_memory_is_unknown_makes_no_peak() -> None:
    usage = JobUsage(0)
    usage.gpus.setdefault("GPU-aa", GpuUsage()).add_memory(None, 1, 1.0)
    assert usage.measured().peak_mib is None


def test_a_new_sampler_takes_up_peaks_events_and_shards() -> None:
    usage = JobUsage(1, shards=8, verified=True, limit_mib=8192, companions={9}, events=[xid(31, 9)])
    usage.note_peak("GPU-aa", 500.0)
    live = Live(jobs={7: LiveJob(restarts=1, measured=usage.measured())})
    again = usage_from(live_from(json.loads(json.dumps(live_table(live)))).jobs[7])
    assert (again.peak_mib(), again.shards, again.verified, again.companions, again.events) == (
        500.0,
        8,
        True,
        {9},
        [xid(31, 9)],
    )


def checks(config: NodeConfig, times: list[float], **what: Any) -> list[tuple[str, str]]:
    watch, due = Watch(config), []
    for now in times:
        due += watch.check(
            7,
            now,
            **{
                "mib": 9000.0,
                "limit_mib": 8192,
                "verified": True,
                "beside": True,
                "outside": 0,
                "unlimited": 0,
                **what,
            },
        )
    return due


def test_an_overrun_that_lasts_is_acted_on_once() -> None:
    config = NodeConfig(on_overrun="cancel", grace_s=10.0)
    assert checks(config, [0, 5]) == []
    ((action, message),) = checks(config, [0, 5, 10, 15, 20])
    assert action == "cancel"
    assert "9000 MiB" in message
    assert "8192" in message


@pytest.mark.parametrize(
    ("status", "end", "verdict"),
    [
        ("1:0", "run=0,saw=oom,by=torch", "oom"),
        ("0:0", "run=0,saw=oom,by=torch", ""),
        ("1:0", "run=3,saw=oom", ""),
    ],
)
def test_what_the_log_said_counts_for_its_own_run_and_only_if_that_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch, status: str, end: str, verdict: str
) -> None:
    node = node.with_config(mps="timeslice")
    monkeypatch.setattr(hook, "start_sampler", lambda folder, name: None)
    hook.prolog(node.folder, node.config, node.env(7))
    comment = f"{node.env(7)['SLURM_JOB_COMMENT']} gpumem-end/1:{end}"
    hook.epilog(node.folder, node.config, node.env(7, SLURM_JOB_EXIT_CODE2=status, SLURM_JOB_COMMENT=comment))
    hook.to_spool(node.folder, node.config, node.env(7))
    record = records.find_record(node.config.spool, 7, 0, "n1")
    assert record is not None
    assert record.verdict == verdict
