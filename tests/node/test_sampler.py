from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import List, Optional

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import JobRecord
from slurm_gpumem.formats.live import GpuSample, Live, read_live
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.hooks.service import sampler_environment
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.sampler import prometheus
from slurm_gpumem.node.sampler.prometheus import Tally, load_tally
from slurm_gpumem.node.sampler.sampler import Sampler
from slurm_gpumem.node.sources.base import GpuProcess
from slurm_gpumem.node.status import NodeStatus, as_json, read_status, render
from tests.node.desk import GPUS, Desk
from tests.support.timing import best_cpu_s, slowness
from tests.support.waiting import until


def test_each_job_gets_the_memory_of_its_own_processes(desk: Desk) -> None:
    desk.job(1)
    desk.job(2)
    desk.hold({desk.process(1): 1000.0, desk.process(1): 500.0, desk.process(2): 300.0})
    live = desk.live()
    assert (live["1"]["peak_mib"], live["2"]["peak_mib"]) == (1500.0, 300.0)
    assert (live["1"]["met"], live["2"]["met"]) == ([2], [1])
    desk.hold({})
    assert desk.live()["1"]["now_mib"] == {GPUS[0].uuid: 0.0}
    assert desk.live()["1"]["peak_mib"] == 1500.0


def test_memory_counts_for_as_long_as_it_was_held(desk: Desk) -> None:
    desk.job(1)
    process = desk.process(1)
    for size, seconds in ((1000.0, 3.0), (200.0, 1.0)):
        desk.hold({process: size})
        desk.sampler._looked = time.monotonic() - seconds
        desk.live()
    (usage,) = desk.sampler.roster.usage.values()
    (held,) = (one.memory.value(1) for one in usage.gpus.values())
    assert held == pytest.approx(800.0, rel=0.2)


def test_memory_of_processes_that_are_no_jobs_is_nobodys(desk: Desk) -> None:
    desk.job(1)
    desk.hold({os.getpid(): 66.0})
    assert desk.live()["1"]["peak_mib"] == 0.0
    assert json.loads(desk.folder.live.read_text())["gpus"][GPUS[0].uuid]["other_mib"] == 66.0


def test_a_gpu_off_the_bus_does_not_stop_the_others(desk: Desk) -> None:
    desk.job(1)
    desk.job(2, gpu=1)
    desk.hold({desk.process(1): 1000.0})
    desk.hold({desk.process(2): 700.0}, gpu=1)
    desk.source.broken[GPUS[0].uuid] = True
    for _ in range(3):
        assert desk.live()["2"]["peak_mib"] == 700.0
    assert (desk.folder.root / "log").read_text().count("NVML error 15") == 1
    desk.source.broken.clear()
    assert desk.live()["1"]["peak_mib"] == 1000.0


def test_slurms_count_of_shards_overrules_the_comment(make_desk) -> None:  # type: ignore[no-untyped-def]
    desk = make_desk(squeue=f"echo 1 {os.getuid()} RUNNING 0 0 1 gres:shard:4")
    desk.job(1, claim=CommentRecord(shards=40, request_mib=40960))
    first = desk.live()["1"]
    assert (first["shards"], first["shards_verified"]) == (40, False)
    until(lambda: desk.live()["1"]["shards_verified"])
    job = desk.live()["1"]
    assert (job["shards"], job["limit_mib"]) == (4, 4096)
    assert job["notes"] == ["its comment claims 40 shards, Slurm gave 4"]


@pytest.mark.parametrize(
    ("policy", "said"),
    [("log", ""), ("warn", "notify 1 gpumem: job 1 uses 9000 MiB"), ("cancel", "cancel 1")],
)
def test_an_overrun_is_logged_warned_of_or_cancelled(make_desk, policy: str, said: str) -> None:  # type: ignore[no-untyped-def]
    desk = make_desk(squeue=f"echo 1 {os.getuid()} RUNNING 0 0 1 gres:shard:4", on_overrun=policy)
    desk.job(1)
    desk.job(2)
    desk.hold({desk.process(1): 9000.0, desk.process(2): 10.0})
    until(lambda: any("9000 MiB" in note for note in desk.live()["1"]["notes"]))
    if said:
        until(lambda: desk.live() and said in desk.said())
    else:
        assert desk.said() == ""


def test_a_process_outside_mps_is_noted(desk: Desk) -> None:
    desk.job(1, mode="mps")
    desk.job(2, mode="mps")
    inside, outside = desk.process(1), desk.process(2)
    desk.source.found[GPUS[0].uuid] = (GpuProcess(inside, 10.0, True), GpuProcess(outside, 10.0, False))
    live = desk.live()
    assert live["1"]["notes"] == []
    assert "outside MPS" in str(live["2"]["notes"])


def test_a_controller_that_is_away_ends_no_job(make_desk, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("slurm_gpumem.node.sampler.tracked_jobs._SWEEP_AFTER_S", 0.0)
    desk = make_desk(squeue='echo >>"$0.asked"; exit 1')
    asked = desk.root / "bin" / "squeue.asked"
    desk.job(1)
    until(lambda: desk.sampler.tick() and asked.exists() and len(asked.read_text()) >= 4)
    assert jobs.get(desk.folder, 1) is not None


@pytest.mark.parametrize(
    ("request_", "shards", "estimate"),
    [
        ("gres:shard:6 5", 6, None),
        ("gres/gpu:1 5 |gpumem/1:est=800,shards=0", None, 800),
        ("gres:shard:6 5 |gpumem/1:est=800,shards=6", 6, 800),
    ],
)
def test_a_job_of_ours_that_no_prolog_announced_is_measured_and_recorded(
    make_desk, monkeypatch: pytest.MonkeyPatch, request_: str, shards: Optional[int], estimate: Optional[int]
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("slurm_gpumem.node.sampler.tracked_jobs._SWEEP_AFTER_S", 0.0)
    desk = make_desk(squeue='cat "$0.answer"')
    answer = desk.root / "bin" / "squeue.answer"
    answer.write_text(
        f"5 {os.getuid()} RUNNING 0 0 1 {request_}\n1 {os.getuid()} RUNNING 0 0 1 gres:shard:6\n"
    )
    desk.job(1)
    until(lambda: desk.live()["1"]["shards_verified"])
    stepd = subprocess.Popen(
        ["bash", "-c", "exec -a 'slurmstepd: [5.batch]' bash -c 'sleep 60; :'"], start_new_session=True
    )
    try:
        text = Path(f"/proc/{stepd.pid}/task/{stepd.pid}/children")
        child = int(until(lambda: text.read_text().split())[0])
        desk.hold({child: 900.0})
        until(lambda: desk.live().get("5", {}).get("peak_mib") == 900.0)
    finally:
        os.killpg(stepd.pid, 9)
        stepd.wait()
    desk.hold({})
    answer.write_text(f"1 {os.getuid()} RUNNING 0 0 1 gres:shard:6\n")
    until(lambda: "5" not in desk.live())
    (record,) = records.read_records(desk.config.spool, 5)
    assert (record.measured.peak_mib, record.measured.shards) == (900.0, shards)
    assert record.claimed.estimate_mib == estimate
    assert "no prolog announced it" in record.notes[0]
    answer.write_text(f"5 {os.getuid()} TIMEOUT 0 0 1 {request_}\n")
    until(lambda: desk.sampler.tick() and _record(desk, 5).state == "TIMEOUT")


@pytest.mark.parametrize(("every_s", "peaks"), [(0.0, [900.0]), (3600.0, [])])
def test_the_spool_has_what_was_measured_so_far_no_older_than_the_site_wants(
    make_desk, every_s: float, peaks: List[float]
) -> None:  # type: ignore[no-untyped-def]
    desk = make_desk(record_every_s=every_s)
    desk.job(1)
    pid = desk.process(1)
    for mib in (300.0, 900.0):
        desk.hold({pid: mib})
        desk.sampler.tick()
    found = records.read_records(desk.config.spool, 1)
    assert [(record.end, record.measured.peak_mib) for record in found] == [(None, peak) for peak in peaks]


def test_an_xid_marks_the_jobs_that_lost_their_processes(desk: Desk) -> None:
    for job_id in (1, 2):
        desk.job(job_id, mode="mps")
    desk.hold({desk.process(1): 10.0, desk.process(2): 10.0}, mps=True)
    desk.sampler.tick()
    desk.hold({})
    desk.source.pending = [(GPUS[0].uuid, 31)]
    live = desk.live()
    assert [event["with"] for event in live["1"]["events"]] == [[2]]  # type: ignore[attr-defined]
    assert [event["xid"] for event in live["2"]["events"]] == [31]  # type: ignore[attr-defined]


def test_the_drivers_accounting_fills_in_what_fell_between_two_looks(desk: Desk) -> None:
    desk.job(1)
    pid = desk.process(1)
    desk.hold({pid: 100.0})
    desk.source.accounts = {pid: (750.0, time.time(), 1.0), 999_999: (800.0, time.time() + 1, 0.2)}
    for _ in range(6):
        desk.sampler.tick()
    assert desk.live()["1"]["peak_mib"] == 800.0


def test_a_process_that_two_jobs_could_have_run_is_nobodys(desk: Desk) -> None:
    desk.job(1)
    desk.job(2)
    desk.source.accounts = {999_999: (800.0, time.time() + 1, 0.2)}
    for _ in range(6):
        desk.sampler.tick()
    assert desk.live()["1"]["peak_mib"] == 0.0


def test_activity_is_read_when_it_is_due_or_the_jobs_change(desk: Desk) -> None:
    desk.job(1)
    first = desk.process(1)
    desk.hold({first: 100.0})
    for _ in range(5):
        desk.sampler.tick()
    assert desk.source.samples == 1
    desk.job(2)
    desk.hold({first: 100.0, desk.process(2): 100.0})
    desk.sampler.tick()
    assert desk.source.samples == 2
    # What was used before the second job came is the first one's alone.
    live = desk.live()
    assert live["1"]["energy_j"] is not None
    assert live["2"]["energy_j"] is None


@pytest.mark.parametrize(
    ("status", "answer", "state"),
    [
        ("0:0", "CANCELLED 0", "CANCELLED"),
        ("1:0", "FAILED 0", "FAILED"),
        ("1:0", "PENDING 1", "FAILED"),
        ("0:0", "COMPLETING 1", "REQUEUED"),
        ("143:0", "FAILED 1", "REQUEUED"),
    ],
)
def test_a_run_that_ended_gets_slurms_word_on_how(make_desk, status: str, answer: str, state: str) -> None:  # type: ignore[no-untyped-def]
    desk = make_desk(squeue=f"echo 1 {os.getuid()} {answer} 0 1 gres:shard:4 9_3")
    desk.job(1)
    desk.sampler.tick()
    desk.close_record(1, status)
    jobs.drop(desk.folder, 1)
    until(lambda: desk.sampler.tick() or _record(desk, 1).state)
    record = _record(desk, 1)
    assert (record.state, record.measured.array_job, record.measured.array_task) == (state, 9, 3)
    assert load_tally(desk.folder.counters).ended == {state.lower(): 1}


def test_a_run_that_is_being_requeued_is_left_to_its_epilog(
    make_desk, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """Slurm counts the restart when it sends SIGTERM; the run may go on for all of KillWait."""
    monkeypatch.setattr("slurm_gpumem.node.sampler.tracked_jobs._SWEEP_AFTER_S", -1.0)
    asked = f'echo >>"$0.asked"; echo 1 {os.getuid()} COMPLETING 1 0 1 gres:shard:4'
    desk = make_desk(squeue=asked)
    desk.job(1)
    count = desk.root / "bin" / "squeue.asked"
    until(lambda: desk.sampler.tick() and count.exists() and len(count.read_text()) >= 4)
    assert jobs.get(desk.folder, 1) is not None


@pytest.mark.timing
def test_a_look_costs_less_than_five_milliseconds_with_eight_gpus_and_forty_processes(desk: Desk) -> None:
    before = _rss_mib()
    for number in range(40):
        desk.job(number + 1, gpu=number % 8)
    for gpu in range(8):
        desk.hold({desk.process(number + 1): 1000.0 for number in range(gpu, 40, 8)}, gpu=gpu)
    os.utime(desk.folder.jobs, (0, 0))
    desk.sampler.tick()
    assert best_cpu_s(lambda: _look(desk.sampler, 20), 5) / 20 < 0.005 * slowness()
    assert _rss_mib() - before < 20  # beside Python itself; the whole sampler's is in docs/admin/node.md


def _record(desk: Desk, job_id: int) -> JobRecord:
    """Of its first run."""
    return next(records.read_records(desk.config.spool, job_id))


def _look(sampler: Sampler, count: int) -> None:
    for number in range(count):
        if number % 2:
            sampler._written = float("-inf")
        sampler.tick()


def _rss_mib() -> float:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def test_the_sampler_inherits_only_what_it_needs_and_nothing_empty() -> None:
    env = sampler_environment(
        {"SLURM_CONF": "", "GPUMEM_RUN_DIR": "/x", "LD_PRELOAD": "y", "SLURM_JOB_ID": "7"}
    )
    assert env == {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "GPUMEM_RUN_DIR": "/x"}
    assert sampler_environment({"SLURM_CONF": "/c"})["SLURM_CONF"] == "/c"


def test_the_screen_shows_who_shares_what(desk: Desk) -> None:
    desk.job(11, claim=CommentRecord(shards=8))
    desk.job(12, claim=CommentRecord(shards=20))
    desk.hold({desk.process(11): 9 * 1024.0, desk.process(12): 18 * 1024.0})
    desk.live()
    lines = render(read_status(desk.folder, desk.config))
    assert lines[0].startswith("n1  no sampler runs · source played, 0 s ago")
    assert "gpu0 ▕█████▒▒▒▒▒▒▒▒▒▒" in lines[2]
    assert "2.0/78.1 GiB  SM 50%  300 W" in lines[2]
    assert (
        "█       11 user11     now    9.0  peak    9.0  of    8.0 GiB claimed  timeslice  OVER ITS SHARDS"
        in lines[3]
    )
    assert "▒       12 user12     now   18.0" in lines[4]
    assert all(len(line) <= 100 for line in lines)
    assert all(line.isascii() for line in render(read_status(desk.folder, desk.config), utf8=False))
    assert as_json(read_status(desk.folder, desk.config))["jobs"]["11"]["peak_mib"] == 9216.0


def test_a_name_cannot_paint_the_screen(desk: Desk) -> None:
    jobs.put(desk.folder, NodeJob(1, os.getuid(), "\x1b[2Jevil\n", (GPUS[0].uuid,), "mps", time.time()))
    desk.live()
    assert not any("\x1b" in line or "\n" in line for line in render(read_status(desk.folder, desk.config)))


def test_a_node_without_shared_jobs_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no shared job has run on this node"):
        read_status(RunFolder(tmp_path / "missing"), NodeConfig())
    RunFolder(tmp_path).make()
    assert "no shared job is on this node" in render(read_status(RunFolder(tmp_path), NodeConfig()))


def test_a_gpu_that_is_held_and_does_nothing_is_shown_as_such(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.job(7)
    pid = desk.process(7)
    desk.hold({pid: 2000.0})
    idle = GpuSample(2000.0, 80_000.0, sm_active=0.0, power_w=80.0)
    monkeypatch.setattr(desk.source, "sample", lambda uuid: idle)
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("slurm_gpumem.node.sampler.sampler.time", clock)
    for now[0] in (1000.0, 1050.0, 1100.0):
        desk.live()
    status = NodeStatus(read_live(desk.folder.live) or Live(), {}, True, ())
    assert any("HELD AND IDLE for 00:01:40" in line for line in render(status)), render(status)
    assert 'gpumem_gpu_held_idle_seconds{node="n1",gpu="0"' in node_text(status.live)
    assert status.live.jobs[7].measured.gpu[GPUS[0].uuid].idle_s == 100.0
    monkeypatch.setattr(desk.source, "sample", lambda uuid: idle._replace(sm_active=0.5))
    now[0] = 1200.0
    desk.live()
    status = NodeStatus(read_live(desk.folder.live) or Live(), {}, True, ())
    assert not any("IDLE" in line for line in render(status))


def node_text(live: Live) -> str:
    return prometheus.render(live, Tally(), running=True, users=True)
