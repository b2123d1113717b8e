"""What seccomp refuses where no namespace is allowed: the right calls, on each architecture."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from slurm_gpumem.tracing.guard import restricted
from slurm_gpumem.tracing.guard.restricted import _EVERYWHERE, _MACHINES, _filter

each_machine = pytest.mark.parametrize("machine", _MACHINES)
REFUSED, UNKNOWN, ALLOWED = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x7FFF0000
OLD, NEW = 4, 6
"""Landlock without and with scopes for signals."""
HEADERS = {
    "x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"),
    "aarch64": ("aarch64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h"),
}


def _calls(machine: str) -> Dict[str, int]:
    return {**_MACHINES[machine].calls, **_EVERYWHERE}


@each_machine
def test_numbers_of_calls_are_those_that_libseccomp_knows(machine: str) -> None:
    path = ctypes.util.find_library("seccomp")
    if path is None:
        pytest.skip("libseccomp is not installed")
    number_of = ctypes.CDLL(path).seccomp_syscall_resolve_name_arch
    audit = ctypes.c_uint32(_MACHINES[machine].audit)
    known = {name: number_of(audit, name.encode()) for name in _calls(machine)}
    # Calls that are newer than the library have no number there.
    assert {name: number for name, number in known.items() if number != -1} == {
        name: number for name, number in _calls(machine).items() if known[name] != -1
    }
    assert sum(number != -1 for number in known.values()) > 40


@each_machine
def test_numbers_of_calls_are_those_of_the_kernels_headers(machine: str) -> None:
    paths = [Path("/usr/include", name) for name in HEADERS[machine]]
    of_machine = [path for path in paths if path.exists() and (machine in str(path) or _is_here(machine))]
    if not of_machine:
        pytest.skip(f"no kernel headers of {machine} are installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", of_machine[0].read_text())
    known = {name: int(number) for name, number in found}
    assert {name: known.get(name, number) for name, number in _calls(machine).items()} == _calls(machine)
    assert len(known) > 250


def _is_here(machine: str) -> bool:
    return platform.machine() == machine


@each_machine
@pytest.mark.parametrize("abi", [OLD, NEW])
def test_the_filter_refuses_what_changes_something_and_nothing_else(
    machine: str, abi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    program, calls = _filter(abi), _calls(machine)

    def answer(name: str, first: int = 1, second: int = 0) -> int:
        return _judged(program, _MACHINES[machine].audit, calls[name], first, second)

    looked_at = {"ioctl", "fcntl", *restricted._OF_A_PROCESS, *restricted._SIGNALS}
    assert {answer(name) for name in calls if name not in looked_at} == {REFUSED}
    assert {answer(name) for name in restricted._SIGNALS} == {REFUSED if abi == OLD else ALLOWED}
    assert {answer(name, first=1) for name in restricted._OF_A_PROCESS} == {REFUSED}
    assert {answer(name, first=0) for name in restricted._OF_A_PROCESS} == {ALLOWED}
    assert answer("ioctl", second=0x5401) == ALLOWED
    assert {answer("ioctl", second=command) for command in (0x40086602, 0x5402, 0x5412)} == {REFUSED}
    assert answer("fcntl", second=8) == (REFUSED if abi == OLD else ALLOWED)
    assert answer("fcntl", second=1) == ALLOWED
    named = set(calls.values())
    others = {number for number in range(470) if number not in named}
    assert {_judged(program, _MACHINES[machine].audit, number) for number in others} == {ALLOWED}
    assert _judged(program, _MACHINES[machine].audit, 0x40000000 + 90) == UNKNOWN
    assert _judged(program, 0x40000003, 1) == REFUSED  # a 32-bit program's call


def _judged(program: bytes, audit: int, number: int, first: int = 1, second: int = 0) -> int:
    """What the kernel answers: the few instructions of its machine that the filter uses."""
    shown = struct.pack("=IIQQQ", number, audit, 0, first, second)
    lines = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        code, yes, no, value = lines[at]
        if code == 0x06:
            return int(value)
        if code == 0x20:
            loaded = struct.unpack_from("=I", shown, value)[0]
            at += 1
        else:
            holds = loaded == value if code == 0x15 else loaded >= value
            at += 1 + (yes if holds else no)


@pytest.mark.skipif(platform.machine() not in _MACHINES, reason="no list of calls for this machine")
def test_this_kernel_takes_the_filter_and_signals_to_others_are_refused_without_scopes() -> None:
    code = (
        "import ctypes, fcntl, os, sys\n"
        "from slurm_gpumem.tracing.guard import restricted\n"
        "from slurm_gpumem.tracing.guard.syscalls import NO_NEW_PRIVS, prctl, syscall\n"
        "calls, above = restricted._MACHINES[os.uname().machine].calls, os.getppid()\n"
        f"program = restricted._filter({OLD})\n"
        "prctl(NO_NEW_PRIVS, 1)\nrestricted._install(program)\n"
        "def told(answer): return ctypes.get_errno() if answer < 0 else 0\n"
        "print(told(syscall(calls['kill'], above, 0)), told(syscall(calls['tgkill'], above, above, 0)))\n"
        "try: fcntl.fcntl(0, fcntl.F_SETOWN, above)\nexcept PermissionError: print('refused')\n"
        "print(sys.stdout.isatty())\n"
    )
    root = str(Path(restricted.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["1 1", "refused", "False"], done.stderr


def test_a_landlock_that_cannot_refuse_to_truncate_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted, "syscall", lambda *_: 2)
    with pytest.raises(OSError, match=r"before Linux 6\.2"):
        restricted.restrict([])
