"""A record that is closed stays closed: late samplers, hung spools, killed hooks, rebooted nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from slurm_gpumem.formats.job_record import JobRecord, record_name, write_job_record
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.records import RecordStore
from tests.node.conftest import Node, needs_root, samplers_of
from tests.node.desk import Desk
from tests.support.waiting import until

OPEN = JobRecord(7, 0, os.getuid(), "n1", start=1_700_000_000.0, user="u", mode="mps")


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return RecordStore(folder, tmp_path / "spool", "n1")


def closed(record: JobRecord = OPEN, status: str = "1:0") -> JobRecord:
    return records.closed_record(record, end=record.start + 60, status=status)


def in_spool(store: RecordStore, restarts: int = 0) -> JobRecord:
    record = records.find_record(store.spool, 7, restarts, "n1")
    assert record is not None
    return record


def test_an_open_record_never_replaces_the_closed_one_of_its_run(store: RecordStore) -> None:
    store.write_open(OPEN, 1.0)
    store.close(closed(), 1.0)
    store.write_open(OPEN, 1.0)  # between the closing and its way to the spool
    assert in_spool(store).end is None
    store.flush(1.0)
    assert in_spool(store).exit_code == 1
    store.write_open(OPEN, 1.0)
    assert in_spool(store) == closed()
    assert not store.has_closed()


def test_a_record_that_is_closed_while_another_looks_for_it_is_not_lost(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closes_meanwhile(spool: Path, *about: object) -> None:
        store.close(closed(), 1.0)

    monkeypatch.setattr(records, "amend_use", closes_meanwhile)
    store.amend_use(7, 0, OPEN.measured, 1.0)
    store.flush(1.0)
    assert in_spool(store).exit_code == 1


def test_the_first_closing_counts(store: RecordStore) -> None:
    store.close(closed(), 1.0)
    store.close(closed(status=""), 1.0)
    store.flush(1.0)
    store.close(closed(status=""), 1.0)
    store.flush(1.0)
    assert in_spool(store).exit_code == 1


def test_a_later_job_of_the_same_number_gets_a_record_of_its_own(store: RecordStore) -> None:
    store.close(closed(), 1.0)
    store.flush(1.0)
    later = OPEN._replace(start=OPEN.start + 1000)
    store.write_open(later, 1.0)
    assert in_spool(store).end is None
    store.close(closed(later, "0:0"), 1.0)
    store.flush(1.0)
    assert in_spool(store).start == later.start


def test_while_the_spool_is_gone_closed_records_wait_and_none_is_lost(store: RecordStore) -> None:
    store.spool.write_text("no folder")
    store.close(closed(), 1.0)
    with pytest.raises(OSError, match="exists"):
        store.flush(1.0)
    assert store.has_closed()
    store.spool.unlink()
    store.flush(1.0)
    assert in_spool(store).exit_code == 1


def test_where_run_is_full_the_spool_takes_the_record(store: RecordStore) -> None:
    store.folder.ended.write_text("no folder")
    store.close(closed(), 1.0)
    assert in_spool(store).exit_code == 1


@needs_root
def test_a_sampler_that_stopped_in_the_middle_of_writing_leaves_no_open_record(node: Node) -> None:
    node.hook("prolog", node.env(7))
    store = RecordStore(node.folder, node.config.spool, "n1")
    command = [sys.executable, "-c", PAUSED_WRITER, str(node.root)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"about to write\n"
        # The spool hangs for whoever is in it; the epilog does not wait for that writer.
        assert node.hook("epilog", {**node.env(7), "SLURM_JOB_EXIT_CODE2": "1:0"}).returncode == 0
        assert jobs.get(node.folder, 7) is None
        assert node.mps.daemons() == []
        assert store.has_closed()
        writer.communicate(b"go on\n")
        assert writer.returncode == 0
        store.flush(5.0)
        assert in_spool(store).exit_code == 1
    finally:
        writer.kill()
        writer.wait()


PAUSED_WRITER = """
import sys
from pathlib import Path
from slurm_gpumem.formats import job_record
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node import records
from slurm_gpumem.node.jobs import RunFolder

def write(spool, record, **options):
    print("about to write", flush=True)
    # It waits here, for as long as the test likes, with the lock held.
    sys.stdin.readline()
    job_record.write_job_record(spool, record, **options)

root = Path(sys.argv[1])
records.write_job_record = write
folder = RunFolder(root / "run")
job = jobs.get(folder, 7)
records.RecordStore(folder, root / "spool", "n1").write_open(records.open_record(job, "n1"), 5.0)
"""


@pytest.fixture
def desk_with_answer(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk(squeue='cat "$0.answer" 2>/dev/null || { echo "Invalid job id specified" >&2; exit 1; }')


def answer(desk: Desk, text: str) -> None:
    (desk.root / "bin" / "squeue.answer").write_text(text)


def leave_open(desk: Desk, age_s: float = 3600.0) -> Path:
    write_job_record(desk.config.spool, OPEN)
    path = desk.config.spool / record_name(7, 0, "n1")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_record_whose_job_is_gone_is_closed_with_what_is_known(desk_with_answer: Desk) -> None:
    desk = desk_with_answer
    path = leave_open(desk)
    written = path.stat().st_mtime

    def record() -> JobRecord:
        desk.sampler.tick()
        return next(records.read_records(desk.config.spool, 7))

    until(lambda: record().end is not None)
    assert record().end == pytest.approx(written, abs=0.01)
    assert (record().exit_code, record().known_state) == (None, "UNKNOWN")
    assert "its end was not seen" in record().notes[0]


def test_a_record_whose_job_runs_stays_open(desk_with_answer: Desk) -> None:
    desk = desk_with_answer
    answer(desk, f"7 {os.getuid()} RUNNING 0 0 1 gres:shard:1\n")
    leave_open(desk)
    until(lambda: desk.sampler.tick() or (not desk.sampler.roster._left_open and desk.folder.swept.exists()))
    for _ in range(5):
        desk.sampler.tick()
    assert next(records.read_records(desk.config.spool, 7)).end is None


def test_a_controller_that_is_away_closes_nothing(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(squeue='echo >>"$0.asked"; echo "Unable to contact slurm controller" >&2; exit 1')
    asked = desk.root / "bin" / "squeue.asked"
    leave_open(desk)
    # The second question comes after the first answer; on a busy machine a slow one makes a long pause.
    until(lambda: desk.sampler.tick() or (asked.exists() and len(asked.read_text()) >= 2), 180)
    assert next(records.read_records(desk.config.spool, 7)).end is None


def test_the_search_reads_only_this_nodes_records_and_removes_old_drafts(store: RecordStore) -> None:
    now = time.time()
    store.spool.mkdir()
    for name, age_s in ((".7.0.n1.json.99.tmp", 2 * 86_400), (".8.0.n1.json.99.tmp", 1)):
        (store.spool / name).touch()
        os.utime(store.spool / name, (now - age_s,) * 2)
    write_job_record(store.spool, OPEN)
    write_job_record(store.spool, OPEN._replace(node="n2"))
    write_job_record(store.spool, OPEN._replace(job_id=8))
    write_job_record(store.spool, closed(OPEN._replace(job_id=9)))
    for path in store.spool.glob("[0-9]*"):
        os.utime(path, (now - (3600 if path.name[0] != "8" else 1),) * 2)
    assert store.left_open() == [(7, 0)]
    left = {path.name for path in store.spool.iterdir() if path.name.startswith(".")}
    assert left == {".8.0.n1.json.99.tmp"}
    assert store.left_open() == []  # not again so soon


@needs_root
def test_a_spool_that_comes_back_gets_the_records_from_the_sampler(node: Node) -> None:
    node = node.with_config(idle_exit_s=0.5, record_every_s=0.2)
    node.config.spool.write_text("no folder")
    for name in ("prolog", "epilog"):
        node.hook(name, node.env(7))
    until(lambda: samplers_of(node.folder.root))
    assert (node.folder.ended / "7.0.n1.json").exists()
    node.config.spool.unlink()
    until(lambda: (node.config.spool / "7.0.n1.json").exists())
    assert json.loads((node.config.spool / "7.0.n1.json").read_text())["end"] is not None
    until(lambda: not samplers_of(node.folder.root))
