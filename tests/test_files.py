from __future__ import annotations

import json
import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from slurm_gpumem.files import (
    LockTimeoutError,
    RefusedFileError,
    lock_for_life,
    locked,
    read_json,
    read_plain,
    replaced,
    write_atomic,
    write_json,
)
from tests.node.conftest import OTHER_USER, USER, needs_root


def test_a_written_value_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, None]})
    assert read_json(tmp_path / "a.json") == {"b": [1, None]}


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, ["x" * 100_000, 0])
    writer = multiprocessing.get_context("fork").Process(target=_write_often, args=(path,))
    writer.start()
    seen = {read_json(path)[1] for _ in range(500)}
    writer.join()
    assert None not in seen


def _write_often(path: Path) -> None:
    for number in range(300):
        write_json(path, ["x" * 100_000, number])


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, "old")
    with pytest.raises(OSError, match=r"No such file"):
        write_atomic(tmp_path / "missing" / "a", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_without_a_mode_the_umask_decides_who_reads_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "own", b"\xff", mode=None)
        write_atomic(tmp_path / "public", "text", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644
    assert (tmp_path / "own").read_bytes() == b"\xff"


def test_a_draft_takes_the_files_place_only_if_all_went_well(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replaced(path, mode=0o600) as draft:
        draft.write_text("first")
        assert not path.exists()

    def interrupted() -> None:
        with replaced(path) as draft:
            draft.write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("first", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_plain_file_of_an_expected_owner_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3000)
    assert read_plain(tmp_path / "a", most_bytes=3000, owners=(os.geteuid(),)) == b"x" * 3000
    (tmp_path / "a").write_bytes(b"")
    assert read_plain(str(tmp_path / "a"), most_bytes=3000) == b""


@pytest.mark.parametrize(
    ("lay", "why"),
    [
        (lambda path: os.mkfifo(path), "no plain file"),
        (lambda path: path.mkdir(), "no plain file"),
        (lambda path: path.symlink_to("/etc/hostname"), "symbolic links"),
        (lambda path: path.write_bytes(b"x" * 1025), "larger than"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_no_plain_small_file_is_refused_with_a_reason_and_never_waited_for(
    tmp_path: Path, lay: Callable[[Path], object], why: str
) -> None:
    lay(tmp_path / "a")
    with pytest.raises(OSError, match=why):
        read_plain(tmp_path / "a", most_bytes=1024)


def test_a_file_of_another_owner_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("planted")
    with pytest.raises(RefusedFileError, match=f"belongs to user {os.geteuid()}"):
        read_plain(tmp_path / "a", most_bytes=1024, owners=(os.geteuid() + 1,))


def test_no_handle_stays_open_after_a_refusal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(RefusedFileError):
            read_plain(tmp_path / "a", most_bytes=1024)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_no_json_reads_as_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'{"torn": \xff')
    assert read_json(tmp_path / "a") is None
    assert read_json(tmp_path / "missing") is None


@pytest.mark.parametrize("lay", [os.symlink, os.link])
def test_a_file_that_lies_in_wait_is_not_written_into(tmp_path: Path, lay: Callable[..., None]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lay(victim, tmp_path / f".record.{os.getpid()}.tmp")
    write_atomic(tmp_path / "record", "text")
    assert (victim.read_text(), (tmp_path / "record").read_text()) == ("precious", "text")
    assert not (tmp_path / "record").is_symlink()


@needs_root
def test_a_record_is_read_by_its_user_and_by_nobody_else(state_folder: Path) -> None:
    path = state_folder / "record.json"
    write_json(path, {"peak": 1}, mode=0o640, reader_uid=USER, reader_gid=USER)
    assert os.stat(path).st_uid == 0
    assert _reads(path, USER).returncode == 0
    assert _reads(path, OTHER_USER).returncode != 0
    assert "Permission denied" in _reads(path, OTHER_USER).stderr


@needs_root
def test_a_file_system_without_access_lists_gives_the_users_group_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lists(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", no_lists)
    write_json(tmp_path / "a", {}, mode=0o640, reader_uid=USER, reader_gid=USER)
    status = os.stat(tmp_path / "a")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, USER, 0o640)


def _reads(path: Path, uid: int) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "cat", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_lock_that_stays_taken_is_an_error_after_the_deadline(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", 1.0), pytest.raises(LockTimeoutError), locked(tmp_path / "lock", 0.05):
        pass


def test_a_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from slurm_gpumem.files import lock_for_life\n"
        "lock_for_life(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert lock_for_life(tmp_path / "lock") is None
    holder.kill()
    holder.wait()
    holder.stdout.close()
    handle = lock_for_life(tmp_path / "lock")
    assert handle is not None
    os.close(handle)


def test_json_is_one_line(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": {"c": 1}})
    assert json.loads((tmp_path / "a").read_text().removesuffix("\n")) == {"b": {"c": 1}}
