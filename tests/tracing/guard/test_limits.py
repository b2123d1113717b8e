"""A traced command is a good guest: memory of every kind, output, disk, CPUs and how many run at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.guard import limits, slots
from slurm_gpumem.tracing.guard.limits import held_mib
from slurm_gpumem.tracing.guard.output import Output
from slurm_gpumem.tracing.guard.slots import Slot, cpus_of
from slurm_gpumem.tracing.script.run import Limits, trace_command
from tests.support.other_user import as_user

NAME = f"gpumem-trace-test-{os.getpid()}"


@pytest.fixture(autouse=True)
def own_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests trace on this machine, too."""
    monkeypatch.setattr(slots, "_NAME", NAME)


WAIT = "import time; print('ready', flush=True); time.sleep(600)"


def _fails(folder: Path, code: str, **allowed: Any) -> str:
    """Why a command of Python's was not traced; it imports no torch."""
    with pytest.raises(TargetError) as error:
        trace_command(
            [sys.executable, "-c", code], Limits(**{"seconds": 60.0, **allowed}), folder=str(folder)
        )
    return str(error.value)


MIB = "b'x' * (1 << 20)"
HOLDERS = {
    "a file without a name": f"import os\nh = os.memfd_create('m')\nfor _ in range(600): os.write(h, {MIB})",
    "shared memory": f"f = open('/dev/shm/x', 'wb')\nfor _ in range(600): f.write({MIB})",
    "its private copies": f"f = open('x', 'wb')\nfor _ in range(600): f.write({MIB})",
    "its own": "x = b'x' * (600 << 20)",
    "pages that processes could share": (
        "import mmap, os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
        f"        view = mmap.mmap(-1, 100 << 20)\n        for _ in range(100): view.write({MIB})\n"
        "        time.sleep(600)\n"
    ),
}


@pytest.mark.parametrize("where", HOLDERS)
def test_memory_counts_wherever_it_is(tmp_path: Path, where: str) -> None:
    code = f"{HOLDERS[where]}\nimport time\ntime.sleep(600)"
    why = _fails(tmp_path, code, memory_mib=400)
    # What is written to a full private copy is refused there and then.
    assert "400 MiB of host memory" in why or "No space left" in why, why


def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    code = (
        "import os, time\nx = b'x' * (150 << 20)\n"
        "for _ in range(6):\n    if os.fork() == 0: time.sleep(2); os._exit(0)\n"
        "for _ in range(6): os.wait()\nraise SystemExit('came to its end')"
    )
    assert "came to its end" in _fails(tmp_path, code, memory_mib=400)


def test_a_file_without_a_name_is_memory_of_whoever_holds_it() -> None:
    code = f"import os\nh = os.memfd_create('m')\nfor _ in range(64): os.write(h, {MIB})\n{WAIT}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert held_mib([process.pid]) >= 64
        process.kill()


def test_output_without_end_fills_no_disk_and_its_last_lines_are_kept() -> None:
    with Output() as output:
        code = "for n in range(300000): print('line', n)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=output.write_end)
        output.listen()
        child.wait()
        assert output.tail(2) == "line 299998\nline 299999"


def test_no_file_of_the_output_is_on_a_disk(tmp_path: Path) -> None:
    code = "import os, sys\nsys.exit(' '.join(os.readlink(f'/proc/self/fd/{n}') for n in (1, 2)))"
    assert "Its last line: pipe:[" in _fails(tmp_path, code)


@pytest.mark.parametrize(
    "name",
    ["private.json", "changed.json", "changed.json.new", "messages.jsonl", "summary.json", "files-1.json"],
)
def test_a_fifo_in_the_shared_folder_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    code = (
        "import os\nfolder = os.environ['GPUMEM_TRACE_DIR']\n"
        f"path = os.path.join(folder, {name!r})\n"
        "os.path.exists(path) and os.unlink(path)\nos.mkfifo(path)\nraise SystemExit('planted')"
    )
    assert "planted" in _fails(tmp_path, code)


FILLED = {
    "folders": "for n in range(600000): os.mkdir(str(n))",
    "a closed folder": "os.mkdir('x'); open('x/y', 'w').close(); os.chmod('x', 0); time.sleep(600)",
    "folders in folders": (
        "for _ in range(3000): os.mkdir(n := 'x' * 50); os.chdir(n)\nopen('y', 'w').close(); time.sleep(600)"
    ),
}


@pytest.mark.parametrize("way", FILLED)
def test_whatever_fills_the_shared_folder_counts_and_is_removed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_REPORT_MIB", 40)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = f"import os, time\nos.chdir(os.environ['GPUMEM_TRACE_DIR'])\n{FILLED[way]}"
    if os.geteuid() == 0 and way == "a closed folder":
        pytest.skip("nothing is closed to root")
    assert "40 MiB" in _fails(tmp_path, code)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_shared_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"files": "none", "why": "read through a link"}')
    code = (
        "import os\nfolder = os.environ['GPUMEM_TRACE_DIR']\n"
        "os.unlink(folder + '/private.json')\n"
        f"os.symlink({str(tmp_path / 'secret.json')!r}, folder + '/private.json')\n"
        "raise SystemExit('planted')"
    )
    assert "planted" in _fails(tmp_path, code)


def test_slots_are_on_different_cpus_as_long_as_there_are_enough() -> None:
    cpus = list(range(8))
    taken = [cpus_of(number, 2, cpus) for number in range(5)]
    assert taken == [[0, 1], [2, 3], [4, 5], [6, 7], [0, 1]]
    assert cpus_of(1, None, cpus) == cpus
    assert cpus_of(1, 3, [0, 1]) == [0, 1]
    assert [len(set(cpus_of(n, 3, cpus))) for n in range(6)] == [3] * 6


def test_no_more_traces_run_at_once_than_the_site_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_WAIT_S", 0.0)
    first, second, third = Slot(2, None), Slot(2, None), Slot(2, None)
    try:
        assert (first.take(), second.take()) == ("", "")
        assert third.take() == "2 traces of yours run on this machine already"
        first.give_back()
        assert third.take() == ""
    finally:
        for slot in (first, second, third):
            slot.give_back()


def test_traces_of_all_users_count_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: another user traces")
    monkeypatch.setattr(slots, "_WAIT_S", 0.0)
    # As a program of their own: the folder of this package may be closed to them.
    code = f"import socket\none = socket.socket(socket.AF_UNIX)\none.bind('\\0{NAME}-0')\n{WAIT}"
    with subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, **as_user()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert Slot(None, 1).take() == "1 traces run on this machine already"
        second = Slot(None, 2)
        assert second.take() == ""
        assert second.number == 1  # other CPUs
        second.give_back()
        process.kill()


def test_a_trace_waits_until_another_one_has_ended() -> None:
    first, second = Slot(1, None), Slot(1, None)
    waited = threading.Event()
    answers: Dict[str, str] = {"first": first.take()}

    def wait() -> None:
        answers["second"] = second.take(waited.set)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert waited.wait(60)
        first.give_back()
        thread.join(60)
        assert answers == {"first": "", "second": ""}
    finally:
        second.give_back()


def test_a_slot_of_a_killed_trace_is_free_again() -> None:
    code = (
        "from slurm_gpumem.tracing.guard import slots\n"
        f"slots._NAME = {NAME!r}\nslot = slots.Slot(1, None)\nassert slot.take() == ''\n{WAIT}"
    )
    root = str(Path(slots.__file__).parents[3])
    words: List[str] = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    slot = Slot(1, None)
    assert slot.take() == ""
    slot.give_back()


def test_a_second_trace_runs_on_other_cpus_than_the_first(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    first = Slot(None, 64)
    assert first.take() == ""
    try:
        code = "import os, sys\nsys.exit(f'on {sorted(os.sched_getaffinity(0))}')"
        why = _fails(tmp_path, code, cpus=1, of_machine=64)
    finally:
        first.give_back()
    ran_on = int(why.partition("on [")[2].partition("]")[0])
    assert ran_on in cpus
    assert ran_on != cpus_of(first.number, 1, cpus)[0]


def test_a_trace_has_low_priority_and_leaves_no_core_files(tmp_path: Path) -> None:
    code = (
        "import os, resource, sys\n"
        "sys.exit(f'nice {os.nice(0)} core {resource.getrlimit(resource.RLIMIT_CORE)[0]}')"
    )
    assert f"nice {os.nice(0) + 5} core 0" in _fails(tmp_path, code)
