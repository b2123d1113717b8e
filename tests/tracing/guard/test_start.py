"""A command in its private copy of the files: it changes what it likes, and nothing of the user's changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

from slurm_gpumem.tracing import guard
from tests.support.waiting import until

PYTHON = "/usr/bin/python3"
SOMEBODY = 54321


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of the user who runs the command: another one where the tests are root's."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-private-"))
    (folder / "report").mkdir()
    (folder / "work").mkdir()
    (folder / "work" / "last.ckpt").write_bytes(b"weights of last week")
    (folder / "work" / "log.txt").write_text("line 1\n")
    # The package where that user can read it.
    copy = folder / "slurm_gpumem" / "tracing" / "guard"
    shutil.copytree(Path(guard.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for above in (copy.parent, copy.parent.parent):
        (above / "__init__.py").touch()
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, SOMEBODY, SOMEBODY)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(place: Path, shell: str) -> Tuple[str, List[str]]:
    """What a shell line prints in the private world, and the files that it changed there."""
    user = (
        ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
        if os.geteuid() == 0
        else []
    )
    done = subprocess.run(
        [
            *user,
            PYTHON,
            *("-I", "-S", str(place / "slurm_gpumem" / "tracing" / "guard" / "start.py")),
            str(place / "report"),
            "64",
            "--",
            "sh",
            "-c",
            shell,
        ],
        cwd=place / "work",
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    state = json.loads((place / "report" / "private.json").read_text())
    if state["files"] != "overlay":
        pytest.skip(f"this host allows no private copy of the files: {state['why']}")
    changed = json.loads((place / "report" / "changed.json").read_text())
    return done.stdout + done.stderr, changed


def test_files_are_written_renamed_and_removed_in_the_copy_only(place: Path) -> None:
    output, changed = run(
        place,
        "echo new > last.ckpt; echo line 2 >> log.txt; mkdir out; mv log.txt out/; rm last.ckpt; ls; ls out",
    )
    assert output.split() == ["out", "log.txt"]
    work = place / "work"
    assert sorted(path.name for path in work.iterdir()) == ["last.ckpt", "log.txt"]
    assert (work / "last.ckpt").read_bytes() == b"weights of last week"
    assert (work / "log.txt").read_text() == "line 1\n"
    assert str(work / "out" / "log.txt") in changed


def test_files_of_others_leave_room_for_what_the_command_writes(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the files belong to somebody else")
    shared = place / "shared"
    shared.mkdir()
    for number in range(12):
        path = shared / f"{number}.bin"
        path.write_bytes(bytes(7 << 20))
        path.chmod(0o666)
    output, _ = run(place, "head -c 30000000 /dev/zero > mine && stat -c %s mine")
    assert output.split() == ["30000000"]


def test_shared_folders_are_covered_too(place: Path) -> None:
    name = f"gpumem-test-{os.getpid()}"
    output, _ = run(
        place, f"echo a > /tmp/{name} && echo b > /var/tmp/{name} && cat /tmp/{name} /var/tmp/{name}"
    )
    assert output.split() == ["a", "b"]
    assert not Path("/tmp", name).exists()
    assert not Path("/var/tmp", name).exists()


def test_a_folder_that_the_user_may_not_write_to_is_no_reason_to_do_without_a_copy(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the folder belongs to somebody else")
    os.chown(place / "work", 0, 0)
    output, _ = run(place, "echo a > /tmp/gpumem-own && cat /tmp/gpumem-own")
    assert output.split() == ["a"]


def test_there_is_no_network_but_the_loopback(place: Path) -> None:
    code = "import socket\nprint([name for _, name in socket.if_nameindex()])"
    output, _ = run(place, f"{PYTHON} -c '{code}'")
    assert output.strip() == "['lo']"


def test_the_user_stays_who_they_are(place: Path) -> None:
    output, _ = run(place, "id -u")
    assert output.strip() == str(SOMEBODY if os.geteuid() == 0 else os.geteuid())


def _running(mark: str) -> List[str]:
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False).stdout.split()


def test_what_a_command_leaves_in_the_background_ends_with_it(place: Path) -> None:
    mark = f"gpumem-left-{os.getpid()}"
    run(place, f"setsid {PYTHON} -c 'import time; time.sleep(600)' {mark} & sleep 0.2; echo started")
    until(lambda: _running(mark) == [])


def test_its_exit_code_is_the_commands(place: Path) -> None:
    output, _ = run(place, "exit 3")
    assert output == ""


def test_the_command_is_no_first_process_that_signals_do_not_reach(place: Path) -> None:
    output, _ = run(place, "echo $$; kill -TERM $$; echo survived")
    assert output.split() == ["2"]


def test_a_script_that_ends_its_process_group_ends_nothing_else(place: Path) -> None:
    output, changed = run(place, "trap 'kill -9 0' EXIT; echo new > made; sleep 600 & exit 3")
    assert output == ""
    assert str(place / "work" / "made") in changed


def test_when_whoever_started_it_is_killed_nothing_is_left_behind(place: Path) -> None:
    mark = f"gpumem-orphan-{os.getpid()}"
    start = str(place / "slurm_gpumem" / "tracing" / "guard" / "start.py")
    command = [PYTHON, "-c", "import time; time.sleep(600)", mark]
    words = [PYTHON, "-I", "-S", start, str(place / "report"), "64", "--", *command]
    code = "import subprocess, sys\nsubprocess.Popen(sys.argv[1:]).wait()"
    user = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
    prefix = user if os.geteuid() == 0 else []
    starter = subprocess.Popen([*prefix, PYTHON, "-c", code, *words], cwd=place / "work")
    until(
        lambda: any(_cmdline(pid)[:1] == [PYTHON] and _cmdline(pid)[3:] == [mark] for pid in _running(mark))
    )
    starter.kill()
    starter.wait()
    until(lambda: _running(mark) == [])
    until(lambda: not (place / "report").exists())


def _cmdline(pid: str) -> List[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []
