"""Where no namespace is allowed: Landlock refuses writes, and seccomp what Landlock does not cover.

The command may write to one scratch folder. Changes of modes, owners, times and attributes, sockets, System V
memory, device controls and, before Linux 6.12, signals are refused altogether: neither of the two can tell by
a path or a process whose they are. Landlock before Linux 6.2 cannot refuse to truncate: it counts as none.
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
_RIGHTS = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
"""Write a file; remove a folder, a file; make a device, folder, file, socket, FIFO, block device, link;
rename or link from one folder to another; truncate."""
_OLDEST_ABI, _SCOPES_ABI = 3, 6
_SCOPES = 0b11
"""Abstract sockets of, and signals to, processes outside."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


def restrict(scratch: Sequence[str]) -> None:
    """From here on, for this process and all that it starts; OSError where the kernel cannot."""
    abi = check(syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock")
    if abi < _OLDEST_ABI:
        raise OSError(errno.ENOSYS, "Landlock before Linux 6.2 cannot refuse to truncate files")
    refused = _filter(abi)
    prctl(NO_NEW_PRIVS, 1)
    _landlock(abi, scratch)
    _install(refused)


def _landlock(abi: int, scratch: Sequence[str]) -> None:
    attributes = struct.pack("QQQ", _RIGHTS, 0, _SCOPES) if abi >= _SCOPES_ABI else struct.pack("Q", _RIGHTS)
    size = ctypes.c_size_t(len(attributes))
    ruleset = check(syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    for path in [*scratch, *filter(os.path.exists, _DEVICES)]:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        own = _RIGHTS if os.path.isdir(path) else _WRITE_FILE | _TRUNCATE
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
        "shmget": 29, "shmctl": 31, "shmat": 30, "semget": 64, "semctl": 66, "semop": 65, "semtimedop": 220,
        "msgget": 68, "msgctl": 71, "msgsnd": 69, "msgrcv": 70, "mq_open": 240, "mq_unlink": 241,
        "ptrace": 101, "process_vm_writev": 311, "add_key": 248, "request_key": 249, "keyctl": 250,
        "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
        "setpriority": 141, "ioprio_set": 251, "prlimit64": 302, "sched_setaffinity": 203,
        "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314, "ioctl": 16, "fcntl": 72,
    }),
    "aarch64": _Machine(0xC00000B7, {
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5,
        "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "socket": 198, "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191, "semop": 193,
        "semtimedop": 192, "msgget": 186, "msgctl": 187, "msgsnd": 189, "msgrcv": 188, "mq_open": 180,
        "mq_unlink": 181, "ptrace": 117, "process_vm_writev": 271, "add_key": 217, "request_key": 218,
        "keyctl": 219, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "setpriority": 140, "ioprio_set": 30, "prlimit64": 261,
        "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
        "ioctl": 29, "fcntl": 25,
    }),
}  # fmt: skip
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
_OF_A_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
"""Allowed for the caller itself, which is number 0."""
_CONTROLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Of all that ioctl does: what a terminal is and how large, bytes to read, and whether a handle waits or is
inherited. Others change attributes of files (chattr), terminals and devices."""
_OWNERS = (8, 15)
"""What fcntl would send signals to: F_SETOWN, F_SETOWN_EX."""
_UNKNOWN = 470
"""The first call that this list does not know; on x86_64, those of another kind of program are beyond it."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24
"""Where the kernel shows which call it is, of which architecture, and the lower halves of its arguments."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SECCOMP, _FILTER = 22, 2


class _Line(NamedTuple):
    """Of the program, with the names of the parts to go to; "" is the next line."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


def _filter(abi: int) -> bytes:
    """The program that the kernel asks for every call; parts only lead to parts behind them."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    calls = {**machine.calls, **_EVERYWHERE}
    scoped = abi >= _SCOPES_ABI
    looked_at = {"ioctl", "fcntl", *_OF_A_PROCESS, *(_SIGNALS if scoped else ())}
    parts = {
        "": [
            _Line(_LOAD, _MACHINE_AT),
            _Line(_EQUAL, machine.audit, no="refuse"),
            _Line(_LOAD, _NUMBER_AT),
            _Line(_AT_LEAST, _UNKNOWN, yes="unknown"),
            *(_Line(_EQUAL, number, yes="refuse") for name, number in calls.items() if name not in looked_at),
            *(_Line(_EQUAL, calls[name], yes="process") for name in _OF_A_PROCESS),
            _Line(_EQUAL, calls["ioctl"], yes="ioctl"),
            _Line(_EQUAL, calls["fcntl"], yes="allow" if scoped else "fcntl", no="allow"),
        ],
        "process": [_Line(_LOAD, _FIRST_AT), _Line(_EQUAL, 0, yes="allow", no="refuse")],
        "fcntl": [
            _Line(_LOAD, _SECOND_AT),
            *(_Line(_EQUAL, command, yes="refuse") for command in _OWNERS),
            _Line(_RETURN, _ALLOW),
        ],
        "ioctl": [_Line(_LOAD, _SECOND_AT), *(_Line(_EQUAL, command, yes="allow") for command in _CONTROLS)],
        "refuse": [_Line(_RETURN, _ERRNO | errno.EPERM)],
        "unknown": [_Line(_RETURN, _ERRNO | errno.ENOSYS)],
        "allow": [_Line(_RETURN, _ALLOW)],
    }
    return _assembled(parts)


def _assembled(parts: Dict[str, List[_Line]]) -> bytes:
    lines: List[_Line] = []
    starts: Dict[str, int] = {}
    for name, part in parts.items():
        starts[name] = len(lines)
        lines += part

    def steps(at: int, name: str) -> int:
        return starts[name] - at - 1 if name else 0

    return b"".join(
        struct.pack("HBBI", line.code, steps(at, line.yes), steps(at, line.no), line.value)
        for at, line in enumerate(lines)
    )


def _install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    check(libc.prctl(_SECCOMP, _FILTER, header, 0, 0), "seccomp")
