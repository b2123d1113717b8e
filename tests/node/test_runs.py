"""Every run of a job has a record of its own, with its own end: short, requeued, or without a prolog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict

import pytest

from slurm_gpumem.formats.job_record import JobRecord
from slurm_gpumem.node import hook, jobs, records
from slurm_gpumem.node.hooks.inbox import Request
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.records import RecordStore
from tests.node.conftest import Node, needs_root
from tests.node.desk import GPUS, Desk
from tests.support.waiting import until

COMMENT = "gpumem/1:est=7000,req=8192"
SAW_OOM = COMMENT + " gpumem-end/1:run={run},saw=oom,by=torch"


@pytest.fixture
def quiet(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose hooks run in this process, without a sampler."""
    monkeypatch.setattr(hook, "start_sampler", lambda folder, name: None)
    return node.with_config(mps="timeslice")


def record_of(node: Node, restarts: int, job_id: int = 7) -> JobRecord:
    record = records.find_record(node.config.spool, job_id, restarts, "n1")
    assert record is not None
    return record


def run_env(node: Node, restarts: int, status: str = "0:0", comment: str = COMMENT) -> Dict[str, str]:
    count = str(restarts)
    return node.env(7, comment=comment, SLURM_JOB_RESTART_COUNT=count, SLURM_JOB_EXIT_CODE2=status)


def end_unseen(desk: Desk, job_id: int, restarts: int, status: str = "0:0") -> None:
    """A run that comes and goes between two looks."""
    job = NodeJob(job_id, os.getuid(), "u", (GPUS[0].uuid,), "timeslice", time.time(), restarts)
    store = RecordStore(desk.folder, desk.config.spool, "n1")
    store.close(records.closed_record(records.open_record(job, "n1"), end=job.now(), status=status), 1.0)
    store.flush(1.0)


def state_of(desk: Desk, job_id: int, restarts: int) -> str:
    desk.sampler.tick()
    record = records.find_record(desk.config.spool, job_id, restarts, "n1")
    assert record is not None
    return record.state


def test_runs_that_are_over_before_a_look_get_slurms_word_each_its_own(
    make_desk: Callable[..., Desk],
) -> None:
    desk = make_desk(squeue=f"echo 1 {os.getuid()} COMPLETED 1 0 1 gres:shard:4")
    end_unseen(desk, 1, 0, "1:0")
    end_unseen(desk, 1, 1)
    until(lambda: state_of(desk, 1, 0) and state_of(desk, 1, 1))
    assert (state_of(desk, 1, 0), state_of(desk, 1, 1)) == ("FAILED", "COMPLETED")
    seen = {run.restarts: run.measured for run in records.read_records(desk.config.spool, 1)}
    # Its shards are Slurm's word, too; those of the run before, Slurm does not say any more.
    assert seen[0].shards is None
    assert (seen[1].shards, seen[1].limit_mib) == (4, 4096)
    assert not list(desk.folder.unsettled.iterdir())


def test_the_next_sampler_asks_for_the_ends_that_one_did_not_live_to_learn(
    make_desk: Callable[..., Desk],
) -> None:
    desk = make_desk(squeue="exit 1")
    end_unseen(desk, 1, 0)
    desk.sampler.tick()
    (desk.root / "bin" / "squeue").write_text(f"#!/bin/sh\necho 1 {os.getuid()} TIMEOUT 0 0 1 gres:shard:4\n")
    desk.sampler = desk.new_sampler()
    until(lambda: state_of(desk, 1, 0) == "TIMEOUT")


def test_a_sampler_stays_while_slurm_is_still_to_say_how_a_run_ended(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(squeue=f'cat "$0.answer" || echo 1 {os.getuid()} COMPLETING 0 0 1 gres:shard:4')
    end_unseen(desk, 1, 0)
    until(desk.sampler.tick)
    for _ in range(20):  # more answers than a job that Slurm has forgotten is asked for
        time.sleep(0.06)
        assert desk.sampler.tick()
    (desk.root / "bin" / "squeue.answer").write_text(f"1 {os.getuid()} CANCELLED 0 0 1 gres:shard:4\n")
    until(lambda: not desk.sampler.tick())
    assert state_of(desk, 1, 0) == "CANCELLED"


def test_a_spool_that_is_away_when_slurm_answers_costs_no_state(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(squeue=f'echo >>"$0.asked"; echo 1 {os.getuid()} FAILED 0 0 1 gres:shard:4')
    end_unseen(desk, 1, 0, "1:0")
    asked, away = desk.root / "bin" / "squeue.asked", desk.root / "away"
    # While another holds the lock nothing can be written.
    command = ["flock", str(desk.folder.records_lock), "sh", "-c", f"touch {away}; read word"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE)
    until(away.exists)
    until(lambda: desk.sampler.tick() and asked.exists() and len(asked.read_text()) >= 2)
    holder.communicate(b"go on\n")
    until(lambda: state_of(desk, 1, 0) == "FAILED")


@needs_root
def test_a_closed_record_comes_to_the_spool_though_the_jobs_next_run_is_here(quiet: Node) -> None:
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 0))
    hook.epilog(quiet.folder, quiet.config, run_env(quiet, 0, "1:0"))
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 1))
    hook.to_spool(quiet.folder, quiet.config, run_env(quiet, 0))
    assert (record_of(quiet, 0).exit_code, record_of(quiet, 1).end) == (1, None)


@needs_root
def test_the_next_run_closes_the_record_of_one_whose_epilog_nobody_served(quiet: Node) -> None:
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 0))
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 1))
    hook.to_spool(quiet.folder, quiet.config, run_env(quiet, 1))
    first, second = record_of(quiet, 0), record_of(quiet, 1)
    assert first.end is not None
    assert (first.exit_code, second.end) == (None, None)
    assert "its epilog was not served" in first.notes[0]


@needs_root
def test_a_run_that_is_finished_late_takes_nothing_of_the_next_one_away(quiet: Node) -> None:
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 0))
    first = jobs.get(quiet.folder, 7)
    assert first is not None
    hook.epilog(quiet.folder, quiet.config, run_env(quiet, 0, "1:0"))
    late = time.time() - 0.5
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 1))
    hook.finish(quiet.folder, quiet.config, first, "n1")
    assert hook.epilog(quiet.folder, quiet.config, run_env(quiet, 0, "9:0"), late)
    hook.to_spool(quiet.folder, quiet.config, run_env(quiet, 1))
    here = jobs.get(quiet.folder, 7)
    assert here is not None
    assert here.restarts == 1
    assert quiet.folder.task_file(7).exists()
    assert (record_of(quiet, 0).exit_code, record_of(quiet, 1).end) == (1, None)


@needs_root
def test_a_run_that_nobody_served_in_time_lasts_from_its_prologs_request_to_its_epilogs(quiet: Node) -> None:
    at = time.time() - 100
    late = Request(quiet.folder.inbox / "prolog.7.1.late", "prolog", 7, run_env(quiet, 0), at, None)
    for run, late_at in enumerate([at + 60, None]):
        env = run_env(quiet, run, "3:0")
        hook.note_late(quiet.folder, quiet.config, late._replace(env=env))
        hook.epilog(quiet.folder, quiet.config, env, late_at)
        hook.to_spool(quiet.folder, quiet.config, env)
    first, second = record_of(quiet, 0), record_of(quiet, 1)
    assert (first.start, first.end, second.start) == (int(at), round(at + 60, 3), int(at))
    assert second.end is not None
    assert second.end >= at + 100


@needs_root
@pytest.mark.parametrize(("how", "when"), [("gone", "from its start on"), ("read-only", "later")])
def test_a_run_that_the_run_folder_lost_is_closed_from_its_open_record(
    quiet: Node, how: str, when: str
) -> None:
    run, env = quiet.folder.root, run_env(quiet, 0, "3:0", SAW_OOM.format(run=0))

    def lose() -> None:
        shutil.rmtree(run)
        run.write_text("") if how == "gone" else run.mkdir()
        if how == "read-only":
            subprocess.run(["mount", "--bind", run, run], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", run], check=True)

    def hooked(name: str) -> None:
        assert quiet.hook(name, env).returncode == 0

    try:
        if when != "later":
            lose()
        hooked("prolog")
        opened: JobRecord = until(lambda: records.find_record(quiet.config.spool, 7, 0, "n1"))
        if when == "later":
            lose()
        hooked("epilog")
        record: JobRecord = until(lambda: (found := record_of(quiet, 0)).end is not None and found)
    finally:
        subprocess.run(["umount", run], check=how == "read-only")
    assert (record.start, record.exit_code, record.verdict) == (opened.start, 3, "oom")
    assert f"{run} had lost this run when it ended: what was measured last is missing" in record.notes
    assert any("it could not be noted" in note for note in record.notes) == (when != "later")


@needs_root
def test_what_the_shell_told_the_next_run_outlives_a_late_end_of_this_one(quiet: Node) -> None:
    told, task = "record yes\nrun 1\n", quiet.folder.task_file(7)
    at = time.time()
    late = Request(quiet.folder.inbox / "prolog.7.1.late", "prolog", 7, run_env(quiet, 1), at + 5, None)
    for end in (
        lambda: hook.epilog(quiet.folder, quiet.config, run_env(quiet, 0, "1:0"), at + 1),
        lambda: hook.note_late(quiet.folder, quiet.config, late),
    ):
        hook.prolog(quiet.folder, quiet.config, run_env(quiet, 0))
        task.write_text(told)
        end()
        assert task.read_text() == told
    here = jobs.get(quiet.folder, 7)
    assert here is not None
    assert here.restarts == 1
    hook.epilog(quiet.folder, quiet.config, run_env(quiet, 1, "1:0"))
    assert not task.exists()


@needs_root
@pytest.mark.parametrize("counted", [1, 2], ids=["over", "requeued again"])
def test_a_run_whose_prolog_slurm_left_out_has_its_record(quiet: Node, counted: int) -> None:
    """Slurm has counted the next restart when the epilog of a run that it requeues runs."""
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 0))
    hook.epilog(quiet.folder, quiet.config, run_env(quiet, 0))
    hook.to_spool(quiet.folder, quiet.config, run_env(quiet, 0))
    env = run_env(quiet, counted, "1:0", SAW_OOM.format(run=1))
    assert not hook.epilog(quiet.folder, quiet.config, env)
    at = time.time()
    for _ in range(2):
        hook.record_unannounced(quiet.folder, quiet.config, env, at)
    hook.to_spool(quiet.folder, quiet.config, env)
    record = record_of(quiet, 1)
    assert (record.exit_code, record.verdict, record.end is not None) == (1, "oom", True)
    assert record.notes == ("Slurm ran no Prolog for this run: its start is not known",)
    assert sorted(path.name for path in quiet.config.spool.iterdir()) == ["7.0.n1.json", "7.1.n1.json"]
    assert set(RecordStore(quiet.folder, quiet.config.spool, "n1").unsettled()) == {(7, 0), (7, 1)}


@needs_root
@pytest.mark.parametrize("counted", [1, 2], ids=["over", "requeued"])
def test_an_epilog_that_is_run_again_after_its_work_records_no_other_run(quiet: Node, counted: int) -> None:
    at = time.time()
    hook.prolog(quiet.folder, quiet.config, run_env(quiet, 1))  # its first run was on another node
    hook.epilog(quiet.folder, quiet.config, run_env(quiet, counted, "3:0"))
    assert not hook.epilog(quiet.folder, quiet.config, run_env(quiet, counted, "3:0"))
    hook.record_unannounced(quiet.folder, quiet.config, run_env(quiet, counted, "3:0"), at)
    hook.to_spool(quiet.folder, quiet.config, run_env(quiet, counted))
    assert [path.name for path in quiet.config.spool.iterdir()] == ["7.1.n1.json"]
    assert record_of(quiet, 1).notes == ()


@pytest.fixture
def served(node: Node) -> Node:
    """A node where a sampler serves the hooks, and nothing else does."""
    node = node.with_config(idle_exit_s=60.0)
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write("python=/bin/false\n")
    return node


def stop(node: Node) -> int:
    sampler = int((node.folder.inbox / "sampler").read_text())
    os.kill(sampler, signal.SIGSTOP)
    return sampler


def in_spool(node: Node) -> JobRecord:
    path: Path = node.config.spool / "7.0.n1.json"
    record: JobRecord = until(lambda: (found := records.read_record(path)) and found.end and found)
    return record


@needs_root
def test_a_run_without_a_prolog_is_recorded_by_the_sampler(served: Node) -> None:
    served.hook("epilog", run_env(served, 0, "3:0"))
    record = in_spool(served)
    assert (record.exit_code, record.mode) == (3, "without_mps")
    assert record.notes == ("not limited: Slurm ran no Prolog for this run: its start is not known",)
    assert jobs.get(served.folder, 7) is None


@needs_root
def test_a_job_whose_prolog_gave_up_and_that_is_over_has_its_exit_code(served: Node) -> None:
    sampler = stop(served)
    try:
        served.hook("prolog", run_env(served, 0))
        subprocess.Popen([served.hooks / "epilog.sh"], env=run_env(served, 0, "3:0"))
        until(lambda: list(served.folder.inbox.glob("epilog.7.*")))
    finally:
        os.kill(sampler, signal.SIGCONT)
    record = in_spool(served)
    assert record.exit_code == 3
    assert record.notes == ("not limited: its prolog gave up before it was served",)
    until(lambda: not list(served.folder.inbox.glob("*.7.*")))


@needs_root
def test_an_epilog_that_gave_up_is_made_good_with_its_exit_code(served: Node) -> None:
    served.hook("prolog", run_env(served, 0))
    until(lambda: jobs.get(served.folder, 7))
    sampler = stop(served)
    try:
        served.hook("epilog", run_env(served, 0, "3:0"))
        assert list(served.folder.inbox.glob("epilog.7.*.late"))
    finally:
        os.kill(sampler, signal.SIGCONT)
    assert in_spool(served).exit_code == 3
    until(lambda: jobs.get(served.folder, 7) is None)
    until(lambda: not list(served.folder.inbox.glob("*.7.*")))
