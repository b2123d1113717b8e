"""The index: the same whether filled at once or bit by bit, and whatever lies among the records."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.accounting import gather
from slurm_gpumem.accounting.schema import NAME
from slurm_gpumem.accounting.types import GROUPS, Filters
from tests.accounting.job_records import DAY, NOON, UUID, opened, record, site, write


def drawn_records(count: int = 60) -> List[Dict[str, Any]]:
    """Jobs of some users over two months on two GPUs, some requeued, some on two nodes, some observed."""
    draw = random.Random(3)
    found = []
    for job_id in range(1, count + 1):
        start = NOON + draw.random() * 60 * DAY
        peak = 2000 + draw.random() * 12_000
        changes: Dict[str, Any] = {
            "user": f"usr{job_id % 4}",
            "uid": 1000 + job_id % 4,
            "start": start,
            "end": start + draw.random() * 3 * DAY,
            "peak_mib": peak,
            "gpus": [UUID[:-1] + str(draw.randrange(2))],
            "partition": draw.choice(["gpu", "short"]),
            "claim": {"model": f"m{job_id % 3}", "by": draw.choice(["corrected", "remembered"])},
        }
        if job_id % 7 == 0:
            oom = {**changes, "end": start + 60, "exit_code": 1, "state": None, "verdict": "oom"}
            found.append(record(job_id, **oom))
            again = {**changes, "start": start + 200, "end": start + 4000, "shards": None, "limit_mib": None}
            found.append(record(job_id, restarts=1, **again))
        elif job_id % 11 == 0:
            found += [record(job_id, node=node, **changes) for node in ("n1", "n2")]
        elif job_id % 5 == 0:
            claim = {**changes.pop("claim"), "mode": "observe", "shards": "0"}
            found.append(record(job_id, shards=None, limit_mib=None, claim=claim, **changes))
        else:
            found.append(record(job_id, **changes))
    return found


def answers(root: Path) -> Any:
    """Everything that a report could ask."""
    month = Filters(since=NOON + 20 * DAY, until=NOON + 40 * DAY)
    with opened(root) as store:
        return {
            "rows": list(store.select()),
            "summary": [store.summary(), store.summary(month), store.summary(Filters(users=("usr1",)))],
            **{group: store.summary_by(group) for group in GROUPS},
            "wasters": [(one.user, one.jobs, one.worst_job) for one in store.wasters()],
        }


def same(one: Any, other: Any) -> bool:
    """Equal but for the last digits of sums."""
    return json.dumps(rounded(one)) == json.dumps(rounded(other))


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return rounded(vars(value)) if hasattr(value, "__dict__") else value


def test_bit_by_bit_gives_the_same_as_at_once(tmp_path: Path) -> None:
    records = drawn_records()
    at_once, bit_by_bit = tmp_path / "a", tmp_path / "b"
    for folder in (at_once, bit_by_bit):
        folder.mkdir()
    for table in records:
        write(at_once / "spool", table)
    order = list(records)
    random.Random(5).shuffle(order)
    for number, table in enumerate(order):
        open_one = {**table, "end": None, "state": None, "exit_code": None, "peak_mib": 10.0}
        write(bit_by_bit / "spool", open_one if number % 3 == 0 else table)
        if number % 4 == 0:
            opened(bit_by_bit).close()
    for table in records:
        write(bit_by_bit / "spool", table)
    assert same(answers(at_once), answers(bit_by_bit))


def test_looking_again_changes_nothing(tmp_path: Path) -> None:
    for table in drawn_records(30):
        write(tmp_path / "spool", table)
    first = answers(tmp_path)
    assert same(first, answers(tmp_path))
    with opened(tmp_path) as store:
        assert store.freshness.records == len(list((tmp_path / "spool").iterdir()))


def test_a_torn_record_is_counted_and_taken_in_once_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    whole = json.dumps(record(2))
    path = write(tmp_path / "spool", record(2), whole[:200])
    (tmp_path / "spool" / "notes.json").write_text("{}")
    with opened(tmp_path) as store:
        assert [row.job_id for row in store.select()] == [1]
        assert store.freshness.bad_reasons == {"torn or no JSON": 1}
        assert store.bad_records() == ((str(path), "torn or no JSON"),)
    path.write_text(whole)
    with opened(tmp_path) as store:
        assert [row.job_id for row in store.select()] == [1, 2]
        assert store.freshness.bad == 0


def test_traps_in_the_folder_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    os.mkfifo(tmp_path / "spool" / "2.0.n1.json")
    elsewhere = write(tmp_path / "elsewhere", record(3))
    (tmp_path / "spool" / "3.0.n1.json").symlink_to(elsewhere)
    (tmp_path / "spool" / "4.0.n1.json").mkdir()
    with opened(tmp_path) as store:
        assert [row.job_id for row in store.select()] == [1]
        assert store.freshness.bad == 3


def test_a_record_that_changes_soon_after_the_jobs_end_is_read_again(tmp_path: Path) -> None:
    end = time.time() - 5
    write(tmp_path / "spool", record(1, start=end - 100, end=end, state=None, exit_code=0))
    opened(tmp_path).close()
    write(tmp_path / "spool", record(1, start=end - 100, end=end, state="CANCELLED", exit_code=0))
    with opened(tmp_path, force=False) as store:
        assert [row.state for row in store.select()] == ["CANCELLED"]


def test_a_clock_that_was_set_back_hides_no_new_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = time.time
    write(tmp_path / "spool", record(1))
    opened(tmp_path, force=False).close()
    monkeypatch.setattr(time, "time", lambda: really() - 10 * DAY)
    write(tmp_path / "spool", record(2))
    with opened(tmp_path, force=False) as store:
        assert sorted(row.job_id for row in store.select()) == [1, 2]


@pytest.mark.parametrize(("took", "jobs"), [(0.4, [1, 2]), (60.0, [1])])
def test_only_a_long_scan_is_not_repeated_soon(tmp_path: Path, took: float, jobs: List[int]) -> None:
    write(tmp_path / "spool", record(1))
    opened(tmp_path).close()
    with sqlite3.connect(next(tmp_path.rglob(NAME))) as index:
        index.execute("UPDATE folder SET took = ?, looked = ?", (took, time.time()))
    write(tmp_path / "spool", record(2))
    with opened(tmp_path, force=False) as store:
        assert sorted(row.job_id for row in store.select()) == jobs


def test_a_gpu_first_seen_before_it_was_looked_at_gets_its_name_later(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, end=None, state=None, gpu={}))
    opened(tmp_path).close()
    write(tmp_path / "spool", record(1))
    with opened(tmp_path) as store:
        (row,) = store.select()
    assert (row.devices[0].label, row.devices[0].memory_mib, row.gpu) == ("n1/gpu0", 40_960, "a100")


def test_books_are_read_on_from_where_the_last_look_ended(tmp_path: Path) -> None:
    book = tmp_path / "spool" / "71001" / "2026-11.jsonl"
    book.parent.mkdir(parents=True)
    lines = [json.dumps(record(number)) + "\n" for number in range(1, 5)]
    book.write_text(lines[0] + "rubbish\n" + lines[1] + lines[2][:50])
    with opened(tmp_path) as store:
        assert [row.job_id for row in store.select()] == [1, 2]
        assert store.freshness.bad == 1
    with book.open("a") as file:
        file.write(lines[2][50:] + lines[3])
    with opened(tmp_path) as store:
        rows = list(store.select())
        assert [row.job_id for row in rows] == [1, 2, 3, 4]
        assert store.freshness.bad == 1
        assert store.detail(rows[3]).runs[0].peak_mib == 11_600


def test_a_damaged_or_older_index_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1))
    opened(tmp_path).close()
    index = site(tmp_path).own_index / NAME
    index.write_bytes(index.read_bytes()[:5000] + b"\xff" * 4000)
    with opened(tmp_path) as store:
        assert store.freshness.records == 1
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA user_version = 99")
    with opened(tmp_path) as store:
        assert store.freshness.records == 1


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    from slurm_gpumem.accounting.store import open_store

    for number in range(1, 20):
        write(tmp_path / "spool", record(number))
    told: List[Any] = []
    open_store(
        config=site(tmp_path), join=False, progress=lambda done, total: told.append((done, total))
    ).close()
    assert told[0] == (0, 19)
    assert told[-1] == (19, 19)
    assert told == sorted(told)


def test_only_what_is_new_in_a_folder_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 20):
        write(tmp_path / "spool", record(number))
    opened(tmp_path).close()
    write(tmp_path / "spool", record(20, node="n7"))
    read: List[str] = []
    opened_file = gather._open
    monkeypatch.setattr(gather, "_open", lambda path: read.append(path) or opened_file(path))
    with opened(tmp_path) as store:
        assert store.freshness.records == 20
    assert [Path(path).name for path in read] == ["20.0.n7.json"]
