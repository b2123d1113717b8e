"""Files that somebody named: written whole, through no trap."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.errors import UsageError
from slurm_gpumem.named_files import check_target, save

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays another user")
MALLORY = 54321


def test_a_file_that_somebody_named_is_saved_whole_with_their_umask(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    mask = os.umask(0o027)
    try:
        save(tmp_path / "link", b"new")
        save(tmp_path / "private", "mine", mode=0o600)
    finally:
        os.umask(mask)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("real", "private")]
    assert modes == [0o640, 0o600]
    save(Path("/dev/null"), "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        save(tmp_path / "missing" / "a", "new")


def test_a_place_that_cannot_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; name a file in it, like .*/page.html"):
        check_target(f"{tmp_path}/", "page.html")
    with pytest.raises(UsageError, match="there is no folder"):
        check_target(f"{tmp_path}/missing/page.html", "page.html")
    assert check_target("/dev/null", "page.html") == Path("/dev/null")
    assert check_target(f"{tmp_path}/page.html", "page.html") == tmp_path / "page.html"


def laid_by(uid: int, link: Path, target: Any) -> None:
    link.symlink_to(target)
    os.chown(link, uid, uid, follow_symlinks=False)


@needs_root
@pytest.mark.parametrize("name", ["page.html", "folder/page.html", "chain/page.html", "up/../page.html"])
def test_root_writes_through_no_link_that_a_user_laid(state_folder: Path, name: str) -> None:
    everybodys, private = state_folder / "tmp", state_folder / "private"
    private.mkdir()
    (private / "page.html").write_text("precious")
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    laid_by(MALLORY, everybodys / "page.html", private / "page.html")
    laid_by(MALLORY, everybodys / "folder", private)
    laid_by(0, everybodys / "chain", "folder")
    laid_by(MALLORY, everybodys / "up", private)
    for attempt in (
        lambda: check_target(f"{everybodys}/{name}", "x"),
        lambda: save(everybodys / name, "new"),
    ):
        with pytest.raises(UsageError, match=f"is a link of user {MALLORY}; it may be a trap"):
            attempt()
    assert [path.name for path in private.iterdir()] == ["page.html"]
    assert (private / "page.html").read_text() == "precious"


@needs_root
def test_links_that_root_laid_lead_where_they_say(state_folder: Path) -> None:
    (state_folder / "real").mkdir()
    (state_folder / "here").symlink_to(state_folder / "real")
    (state_folder / "real" / "page.html").symlink_to("../kept.html")
    (state_folder / "loop").symlink_to("loop")
    save(check_target(f"{state_folder}/here/page.html", "x"), "new")
    assert (state_folder / "kept.html").read_text() == "new"
    assert (state_folder / "real" / "page.html").is_symlink()
    with pytest.raises(UsageError, match="cannot be written: Too many"):
        save(state_folder / "loop", "new")


@needs_root
def test_a_page_goes_into_no_pipe_of_another_users_and_waits_for_no_reader(state_folder: Path) -> None:
    pipe = state_folder / "page.html"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="cannot be written"):
        save(pipe, "secret")
    os.chown(pipe, MALLORY, MALLORY)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(UsageError, match=f"a pipe of user {MALLORY}"):
            save(pipe, "secret")
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


@needs_root
def test_a_user_follows_another_users_link_only_where_not_everybody_may_lay_one(state_folder: Path) -> None:
    shared, everybodys = state_folder / "project", state_folder / "tmp"
    for folder, mode in ((shared, 0o777), (everybodys, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
        (folder / "real").mkdir()
        (folder / "real").chmod(0o777)
        laid_by(MALLORY, folder / "link", folder / "real")
    script = (
        "import os, sys; from pathlib import Path; from slurm_gpumem.named_files import save; "
        "os.setuid(12345); save(Path(sys.argv[1]), 'new')"
    )
    argv = [sys.executable, "-c", script]
    for folder, code in ((shared, 0), (everybodys, 1)):
        done = subprocess.run([*argv, str(folder / "link" / "page")], capture_output=True, text=True)
        assert (done.returncode, "may be a trap" in done.stderr) == (code, bool(code)), done.stderr
        assert (folder / "real" / "page").exists() == (code == 0)
