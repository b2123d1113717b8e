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
from slurm_gpumem.tracing.guard.slots import Slot, cpus_of
from slurm_gpumem.tracing.script.run import Limits, Output, trace_command
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
    why = str(error.value)
    if os.geteuid() and "allows no user namespaces" in why:
        pytest.skip("this host allows users no namespaces: a trace writes to its scratch folder only")
    return why


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


def test_no_more_traces_run_at_once_than_the_site_allows_and_others_queue() -> None:
    running = [Slot(2), Slot(2)]
    for one in running:
        one.take()
    turns: List[Slot] = []
    places: Dict[Slot, List[int]] = {}
    threads: List[threading.Thread] = []
    try:
        for number in range(1, 4):
            queued, slot = threading.Event(), Slot(2)
            places[slot] = []

            def wait(slot: Slot = slot, queued: threading.Event = queued) -> None:
                def note(place: int) -> None:
                    places[slot].append(place)
                    queued.set()

                slot.take(note)
                turns.append(slot)

            threads.append(threading.Thread(target=wait, daemon=True))
            threads[-1].start()
            assert queued.wait(60)
            assert places[slot] == [number]
        assert not turns
        for at, thread in enumerate(threads):
            [*running, *turns][at].give_back()
            thread.join(60)
            assert turns == [*places][: at + 1]
    finally:
        for slot in (*running, *turns):
            slot.give_back()


def test_traces_run_at_once_as_many_as_there_are_free_cpus_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    taken = [Slot(slots.AS_FREE, cpus=2) for _ in range(9)]
    try:
        assert taken[0]._try(0.0)  # one always
        assert not taken[1]._try(1.0)
        assert [one._try(16.0) for one in taken[1:]] == [True] * 7 + [False]
    finally:
        for one in taken:
            one.give_back()


def test_traces_of_all_users_count_and_the_slot_of_a_killed_one_is_free_again() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: another user traces")
    # As a program of their own: the folder of this package may be closed to them.
    code = f"import socket\none = socket.socket(socket.AF_UNIX)\none.bind('\\0{NAME}-0')\n{WAIT}"
    with subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, **as_user()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        second, third = Slot(2), Slot(1)
        second.take()
        assert second.number == 1  # other CPUs
        third.take(lambda place: process.kill())
        second.give_back()
        third.give_back()


def test_a_second_trace_runs_on_other_cpus_than_the_first(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    first = Slot(64)
    first.take()
    try:
        code = "import os, sys\nsys.exit(f'on {sorted(os.sched_getaffinity(0))}')"
        why = _fails(tmp_path, code, cpus=1, at_once=64)
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
