"""The library that CUDA programs load: they ask before they end, and end as they would without it."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Iterator, List

import pytest

from slurm_gpumem.node.processes import Process, send, start_of
from slurm_gpumem.node.sampler.slots import MARK, SIGNAL
from tests.node.conftest import REPOSITORY
from tests.support.end_library import build_end_library

LOAD = "import ctypes, os, signal, sys, time; ctypes.CDLL(sys.argv[1]).InitializeInjection(); "
READY = "print('ready', flush=True); time.sleep(60)"


class Asked:
    """A socket in the sampler's place; it notes who asked, and lets each go at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pids: List[int] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            channel, _ = self._listener.accept()
            with channel:
                credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                self.pids.append(int.from_bytes(credentials[:4], sys.byteorder))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end")
    for name in ("gpumem_end.c", "build_end.sh"):
        shutil.copy(REPOSITORY / "prolog" / name, folder)
    return build_end_library(folder)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path / "end.sock")


def _started(library: Path, code: str, asked: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup\n{code}",
            str(library),
        ],
        env={"GPUMEM_END_SOCKET": str(asked)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _rest(process: subprocess.Popen[str]) -> str:
    """What it says after it was ready, to its end; communicate() would miss what readline() read ahead."""
    assert process.stdout is not None
    said = process.stdout.read()
    process.wait(timeout=30)
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_asks_to_be_let_go_and_ends_of_the_signal(
    library: Path, asked: Asked, number: signal.Signals
) -> None:
    process = _started(library, LOAD + READY, asked.path)
    process.send_signal(number)
    assert process.wait(timeout=30) == -number
    assert asked.pids == [process.pid]


def test_the_signal_before_a_slots_end_is_passed_over(library: Path, asked: Asked) -> None:
    process = _started(library, LOAD + READY, asked.path)
    start = start_of(process.pid)
    assert start is not None
    assert send(Process(process.pid, start), SIGNAL, mark=MARK)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert asked.pids == [process.pid]


def test_a_process_that_fails_asks_too(library: Path, asked: Asked) -> None:
    process = _started(library, LOAD + "print('ready', flush=True); ctypes.string_at(0)", asked.path)
    assert process.wait(timeout=30) == -signal.SIGSEGV
    assert asked.pids == [process.pid]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_programs_own_stays(library: Path, asked: Asked, when: str) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'saved\\n'), os._exit(7))); "
    imports = "import os, signal, time; "
    code = imports + own + LOAD + READY if when == "before" else LOAD + own + READY
    process = _started(library, code, asked.path)
    process.send_signal(signal.SIGTERM)
    assert (_rest(process), process.returncode) == ("saved\n", 7)
    assert asked.pids == []


def test_python_sees_no_handler(library: Path, asked: Asked) -> None:
    code = LOAD + "print('ready', flush=True); print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    assert _rest(_started(library, code, asked.path)) == "True\n"


def test_a_forked_child_ends_at_once_and_asks_nobody(library: Path, asked: Asked) -> None:
    code = LOAD + "child = os.fork() or (time.sleep(60), os._exit(1)); print('ready', flush=True); "
    code += "os.kill(child, signal.SIGTERM); print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    assert _rest(_started(library, code, asked.path)) == "-15\n"
    assert asked.pids == []


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket in the sampler's place that answers nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "end.sock"))
        listener.listen()
        yield listener


FAILS = {
    "a write of another thread": (
        signal.SIGPIPE,
        "threading.Thread(target=os.write, args=(hole[1], b'x'), daemon=True).start()\n"
        "    while not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.01)",
    ),
    "an instruction": (signal.SIGSEGV, "ctypes.string_at(0)"),
}


@pytest.mark.parametrize("what", FAILS)
def test_what_fails_neither_goes_on_nor_waits_as_long_for_an_answer_as_what_is_told_to_end(
    library: Path, deaf: socket.socket, what: str
) -> None:
    (number, fails), path = FAILS[what], Path(deaf.getsockname())
    told = _started(library, LOAD + READY, path)
    told.send_signal(signal.SIGTERM)
    channels = [deaf.accept()]
    before = "import threading; signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
    then = f"hole = os.pipe(); os.close(hole[0]); print('ready', flush=True)\ntry:\n    {fails}\n"
    failed = _started(library, f"{before}{LOAD}{then}except OSError: print('goes on', flush=True)", path)
    channels.append(deaf.accept())
    library.with_name(library.name + ".go").touch()
    assert (_rest(failed), failed.returncode) == ("", -number)
    assert told.poll() is None
    told.kill()
    told.wait()


def test_without_a_sampler_a_process_ends_as_it_would(library: Path, tmp_path: Path) -> None:
    process = _started(library, LOAD + READY, tmp_path / "nobody.sock")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
