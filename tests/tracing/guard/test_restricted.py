"""What seccomp refuses in a private world and without one: the right calls, on each architecture."""

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
from typing import Callable, Dict, Union

import pytest

from slurm_gpumem.tracing.guard import restricted, seccomp
from slurm_gpumem.tracing.guard.seccomp import _EVERYWHERE, _MACHINES

each_machine = pytest.mark.parametrize("machine", _MACHINES)
REFUSED, UNKNOWN, ALLOWED = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x7FFF0000
HEADERS = {
    "x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"),
    "aarch64": ("aarch64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h"),
    "ppc64le": ("powerpc64le-linux-gnu/asm/unistd_64.h",),
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
    assert {name: number for name, number in known.items() if number > 0} == {
        name: number for name, number in _calls(machine).items() if known[name] > 0
    }
    assert sum(number > 0 for number in known.values()) >= len(_MACHINES[machine].calls) - 2


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
def test_in_a_private_world_only_what_no_namespace_has_is_refused(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = _asked(machine, monkeypatch, alone=False)
    families = {family for family in range(48) if answer("socket", family) == ALLOWED}
    assert families == {1, 2, 10, 16}
    assert {answer("socket", 16, 3, protocol) for protocol in (9, 15, 16)} == {REFUSED}
    refused = {name for name in _calls(machine) if answer(name) == REFUSED}
    assert refused == {*seccomp._NOWHERE} & _calls(machine).keys()


@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_alone_it_refuses_what_changes_something_and_nothing_else(
    machine: str, scoped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = _asked(machine, monkeypatch, alone=True, scoped=scoped)
    looked_at = {"ioctl", "fcntl", "socketpair", *seccomp._OF_A_PROCESS, *seccomp._SIGNALS}
    assert {answer(name) for name in _calls(machine) if name not in looked_at} == {REFUSED}
    assert {answer(name) for name in seccomp._SIGNALS} == {ALLOWED if scoped else REFUSED}
    assert {answer(name, 1) for name in seccomp._OF_A_PROCESS} == {REFUSED}
    assert {answer(name, 0) for name in seccomp._OF_A_PROCESS} == {ALLOWED}
    assert answer("ioctl", 1, 0x5401) == ALLOWED
    assert {answer("ioctl", 1, command) for command in (0x40086602, 0x5402, 0x5412)} == {REFUSED}
    assert {answer("fcntl", 1, command) for command in (6, 7, 8, 15, 37, 38, 1024)} == {REFUSED}
    assert {answer("fcntl", 1, command) for command in (0, 1, 4, 1030)} == {ALLOWED}
    # A pair of datagrams can be connected to a service afterwards; flags are no kind.
    assert [kind for kind in range(7) if answer("socketpair", 1, kind | 0x80800) == ALLOWED] == [1, 5]
    assert answer("socketpair", 30, 1) == REFUSED
    named = set(_calls(machine).values())
    assert {answer(number) for number in range(470) if number not in named} == {ALLOWED}
    assert answer(0x40000000 + 90) == UNKNOWN


def test_a_machine_whose_calls_are_not_known_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    assert seccomp.program(alone=False)
    with pytest.raises(OSError, match="no list of system calls for ppc64le"):
        seccomp.program(alone=True)


def _asked(machine: str, monkeypatch: pytest.MonkeyPatch, **mode: bool) -> Callable[..., int]:
    """What the filter of a machine answers to a call by its name or number, with its arguments."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    lines = seccomp.program(**mode)
    audit = _MACHINES[machine].audit
    assert _judged(lines, 0x40000003, 1) == REFUSED  # a 32-bit program's call

    def answer(call: Union[str, int], first: int = 1, second: int = 1, third: int = 0) -> int:
        number = _calls(machine)[call] if isinstance(call, str) else call
        return _judged(lines, audit, number, first, second, third)

    return answer


def _judged(program: bytes, audit: int, number: int, first: int = 1, second: int = 1, third: int = 0) -> int:
    """What the kernel answers: the few instructions of its machine that the filter uses."""
    shown = struct.pack("=IIQQQQ", number, audit, 0, first, second, third)
    lines = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        code, yes, no, value = lines[at]
        if code == 0x06:
            return int(value)
        if code == 0x20:
            loaded = struct.unpack_from("=I", shown, value)[0]
            at += 1
        elif code == 0x54:
            loaded &= value
            at += 1
        else:
            holds = loaded == value if code == 0x15 else loaded >= value
            at += 1 + (yes if holds else no)


@pytest.mark.skipif(platform.machine() not in _MACHINES, reason="no list of calls for this machine")
def test_this_kernel_takes_the_filter_and_signals_to_others_are_refused_without_scopes() -> None:
    code = (
        "import ctypes, fcntl, os, sys\n"
        "from slurm_gpumem.tracing.guard import seccomp\n"
        "from slurm_gpumem.tracing.guard.syscalls import NO_NEW_PRIVS, prctl, syscall\n"
        "calls, above = seccomp._MACHINES[os.uname().machine].calls, os.getppid()\n"
        "program = seccomp.program(alone=True, scoped=False)\n"
        "prctl(NO_NEW_PRIVS, 1)\nseccomp.install(program)\n"
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
