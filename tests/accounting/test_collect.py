"""The collector: nothing is lost, and everybody reads their own."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any, List

import pytest

from slurm_gpumem.accounting.collect import append, collect
from slurm_gpumem.accounting.store import open_store
from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.config.accounting import AccountingConfig
from tests.accounting.job_records import NOON, record, write
from tests.support.no_slurm import without_slurm

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gathers everybody's records")
NOBODY = pwd.getpwnam("nobody")


def books(store: Path) -> List[Any]:
    found = [json.loads(line) for book in store.rglob("*.jsonl") for line in book.read_text().splitlines()]
    return sorted(found, key=lambda table: table["job_id"])


@needs_root
def test_old_records_become_books_that_their_users_can_read(state_folder: Path) -> None:
    spool, store = state_folder / "spool", state_folder / "store"
    store.mkdir(mode=0o755)
    old = [record(1, uid=NOBODY.pw_uid, user="nobody"), record(2, uid=1), record(3, uid=1)]
    for table in old:
        write(spool, {**table, "start": NOON - 10**7, "end": NOON - 10**7 + 60})
    young = write(spool, record(4, start=time.time() - 100, end=time.time() - 50))
    running = write(spool, record(5, end=None))
    torn = write(spool, record(6), '{"schema":')
    done = collect(spool, store, older_s=3600)
    assert done == (3, 2, 1, ())
    assert sorted(spool.iterdir()) == sorted([young, running, torn])
    assert [table["job_id"] for table in books(store)] == [1, 2, 3]
    assert sorted(path.name for path in store.iterdir()) == ["1", str(NOBODY.pw_uid)]
    os.seteuid(NOBODY.pw_uid)
    try:
        assert len(books(store / str(NOBODY.pw_uid))) == 1
        with pytest.raises(PermissionError):
            list((store / "1").iterdir())
    finally:
        os.seteuid(0)
    config = AccountingConfig(store, spool, state_folder / "index", state_folder / "index")
    with open_store(config=config, join=False) as index:
        assert sorted(row.job_id for row in index.select()) == [1, 2, 3, 4, 5]
        assert collect(spool, store, older_s=3600).records == 0


@needs_root
def test_a_user_cannot_plant_records_in_the_store(state_folder: Path) -> None:
    spool, store = state_folder / "spool", state_folder / "store"
    store.mkdir(mode=0o755)
    write(spool, {**record(1, uid=NOBODY.pw_uid), "start": NOON - 10**7, "end": NOON - 10**7 + 60})
    collect(spool, store, older_s=3600)
    folder = store / str(NOBODY.pw_uid)
    (book,) = folder.glob("*.jsonl")
    assert (folder.stat().st_uid, book.stat().st_uid) == (0, 0)
    os.seteuid(NOBODY.pw_uid)
    try:
        assert book.read_bytes()
        with pytest.raises(PermissionError):
            (folder / "2026-12.jsonl").write_text("forged")
        with pytest.raises(PermissionError), book.open("ab"):
            pass
        with pytest.raises(PermissionError):
            os.chmod(folder, 0o777)
        with pytest.raises(PermissionError):
            book.unlink()
    finally:
        os.seteuid(0)


@needs_root
def test_a_folder_that_was_given_to_its_user_becomes_roots_again(state_folder: Path) -> None:
    folder = state_folder / "store" / str(NOBODY.pw_uid)
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY.pw_uid, -1)
    append(folder / "2026-11.jsonl", [b"{}\n"], NOBODY.pw_uid)
    assert folder.stat().st_uid == 0


@needs_root
def test_what_cannot_be_written_stays_in_the_spool(state_folder: Path) -> None:
    spool, store = state_folder / "spool", state_folder / "store"
    store.mkdir(mode=0o755)
    for uid in (1, NOBODY.pw_uid):
        write(spool, record(uid, uid=uid))
    (store / "1").write_text("in the way")
    done = collect(spool, store, older_s=3600)
    assert (done.records, len(done.failed)) == (1, 1)
    assert done.failed[0].startswith(f"{store / '1'}: ")
    assert [path.name for path in spool.iterdir()] == ["1.0.n1.json"]


@needs_root
def test_what_killed_writers_left_is_removed_after_a_day(state_folder: Path) -> None:
    spool, store = state_folder / "spool", state_folder / "store"
    (store / "1").mkdir(parents=True)
    (spool / "n1").mkdir(parents=True)
    names = [spool / ".1.0.n1.json.77.tmp", spool / "n1" / ".2.0.n1.json.78.tmp", store / "1" / ".a.79.tmp"]
    kept = [spool / ".3.0.n1.json.80.tmp", spool / "notes.tmp", spool / ".hidden"]
    for path in (*names, *kept):
        path.write_text("half")
    for path in (*names, *kept[1:]):
        os.utime(path, (0, 0))
    collect(spool, store, older_s=3600)
    assert [path.exists() for path in (*names, *kept)] == [False] * 3 + [True] * 3


def test_a_line_behind_a_torn_one_stands_alone(tmp_path: Path) -> None:
    book = tmp_path / "71001" / "2026-11.jsonl"
    append(book, [b'{"a":1}\n'], os.geteuid())
    with book.open("ab") as file:
        file.write(b'{"to')
    append(book, [b'{"b":2}\n'], os.geteuid())
    assert book.read_bytes() == b'{"a":1}\n{"to\n{"b":2}\n'


@needs_root
def test_the_command_collects_indexes_and_remembers(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = state_folder
    (root / "store").mkdir()
    (root / "gpumem.toml").write_text(
        f'[node]\nspool = "{root}/spool"\n[accounting]\ndir = "{root}/store"\n'
        f'readers = ["nosuchgroup"]\n[devcluster]\nindex = "{root}/index"\n'
    )
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(root / "gpumem.toml"))
    monkeypatch.setenv("GPUMEM_REMEMBERED", str(root / "remembered.json"))
    without_slurm(root, monkeypatch)
    for number in range(1, 4):
        write(root / "spool", record(number, uid=NOBODY.pw_uid, user="nobody"))
    assert main(["collect", "--older", "0s"]) == 0
    told = capsys.readouterr()
    assert "3 records moved into books, 0 stay in the spool; 3 records indexed" in told.out
    assert "nosuchgroup" in told.err
    remembered = json.loads((root / "store" / str(NOBODY.pw_uid) / "remembered.json").read_text())
    assert list(remembered["runs"].values()) == [{"a100": [11_600, 11_600, 11_600]}]
