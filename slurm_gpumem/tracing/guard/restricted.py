"""Where no namespace is allowed: Landlock refuses writes, and seccomp what Landlock does not cover.

The command may write to one scratch folder. Changes of modes, owners, times and attributes, sockets, System V
memory and, before Linux 6.12, signals are refused altogether: neither of the two can tell by a path or a
process whose they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Dict, List, NamedTuple, Sequence

from slurm_gpumem.tracing.guard.syscalls import NO_NEW_PRIVS, check, prctl, syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
"""Write a file; remove a folder, a file; make a device, folder, file, socket, FIFO, block device, link."""
_REFER = 1 << 13
"""Rename and link from one folder to another."""
_REFER_ABI, _TRUNCATE_ABI, _SCOPES_ABI = 2, 3, 6
_SCOPES = 0b11
"""Abstract sockets of, and signals to, processes outside."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


def restrict(scratch: Sequence[str]) -> None:
    """From here on, for this process and all that it starts; OSError where the kernel cannot."""
    abi = check(syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock")
    refused = _filter(abi)
    prctl(NO_NEW_PRIVS, 1)
    _landlock(abi, scratch)
    _install(refused)


def _landlock(abi: int, scratch: Sequence[str]) -> None:
    rights = _WRITES | (_REFER if abi >= _REFER_ABI else 0) | (_TRUNCATE if abi >= _TRUNCATE_ABI else 0)
    attributes = struct.pack("QQQ", rights, 0, _SCOPES) if abi >= _SCOPES_ABI else struct.pack("Q", rights)
    size = ctypes.c_size_t(len(attributes))
    ruleset = check(syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    for path in [*scratch, *filter(os.path.exists, _DEVICES)]:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        own = rights if os.path.isdir(path) else rights & (_WRITE_FILE | _TRUNCATE)
        check(syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", own, handle), 0), f"landlock {path}")
        os.close(handle)
    check(syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


# -- seccomp -------------------------------------------------------------------------------------


class _Machine(NamedTuple):
    audit: int
    """The kernel's name of the architecture."""
    calls: Dict[str, int]


_EVERYWHERE = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
               "io_uring_setup": 425, "pidfd_getfd": 438, "pidfd_send_signal": 424}  # fmt: skip
_MACHINES = {
    "x86_64": _Machine(0xC000003E, {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189,
        "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "socket": 41,
        "shmget": 29, "shmctl": 31, "shmat": 30, "semget": 64, "semctl": 66, "msgget": 68, "msgctl": 71,
        "mq_open": 240, "mq_unlink": 241, "ptrace": 101, "process_vm_writev": 311, "add_key": 248,
        "request_key": 249, "keyctl": 250, "kill": 62, "rt_sigqueueinfo": 129, "setpriority": 141,
    }),
    "aarch64": _Machine(0xC00000B7, {
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5,
        "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "socket": 198, "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191,
        "msgget": 186, "msgctl": 187, "mq_open": 180, "mq_unlink": 181, "ptrace": 117,
        "process_vm_writev": 271, "add_key": 217, "request_key": 218, "keyctl": 219, "kill": 129,
        "rt_sigqueueinfo": 138, "setpriority": 140,
    }),
}  # fmt: skip
_SIGNALS = ("kill", "rt_sigqueueinfo", "pidfd_send_signal")
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
"""On x86_64: from here on, calls of another kind of program."""
_SECCOMP, _FILTER = 22, 2


def _filter(abi: int) -> bytes:
    """The program that the kernel asks for every call."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    by_landlock = _SIGNALS if abi >= _SCOPES_ABI else ()
    calls = {**machine.calls, **_EVERYWHERE}
    numbers = sorted(number for name, number in calls.items() if name not in by_landlock)
    refuse = len(numbers) + 5
    """Where the program's last line is, which refuses."""
    program: List[bytes] = [
        _line(_LOAD, 0, 0, 4),
        _line(_EQUAL, 0, refuse - 2, machine.audit),
        _line(_LOAD, 0, 0, 0),
        _line(_AT_LEAST, refuse - 4, 0, _X32),
    ]
    program += [_line(_EQUAL, refuse - len(program) - 1 - at, 0, number) for at, number in enumerate(numbers)]
    program += [_line(_RETURN, 0, 0, _ALLOW), _line(_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return b"".join(program)


def _line(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    check(libc.prctl(_SECCOMP, _FILTER, header, 0, 0), "seccomp")
