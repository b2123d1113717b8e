"""What seccomp refuses of a traced command's calls: little in a private world, much where it is alone.

In a private world it closes what no namespace has: families of sockets that reach other machines or the
host's (vsock), keys, and calls that do many things at once. Alone, beside Landlock, it refuses all that could
change something outside and has no path.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Dict, List, NamedTuple

from slurm_gpumem.tracing.guard.syscalls import check


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
        "socketpair": 53, "flock": 73, "bpf": 321, "perf_event_open": 298,
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
        "socket": 198, "socketpair": 199, "flock": 32, "bpf": 280, "perf_event_open": 241, "shmget": 194,
        "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191, "semop": 193,
        "semtimedop": 192, "msgget": 186, "msgctl": 187, "msgsnd": 189, "msgrcv": 188, "mq_open": 180,
        "mq_unlink": 181, "ptrace": 117, "process_vm_writev": 271, "add_key": 217, "request_key": 218,
        "keyctl": 219, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "setpriority": 140, "ioprio_set": 30, "prlimit64": 261,
        "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
        "ioctl": 29, "fcntl": 25,
    }),
    "ppc64le": _Machine(0xC0000015, {
        "socket": 326, "socketpair": 333, "socketcall": 102, "add_key": 269, "request_key": 270,
        "keyctl": 271, "bpf": 361, "perf_event_open": 319,
    }),
}  # fmt: skip
"""Of ppc64le no more than a private world needs."""
_NOWHERE = ("io_uring_setup", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "socketcall")
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _PACKETS = 1, 5
"""Kinds of connected pairs of sockets that cannot be connected to something else afterwards."""
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
_OF_A_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
"""Allowed for the caller itself, which is number 0."""
_CONTROLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Of all that ioctl does: what a terminal is and how large, bytes to read, and whether a handle waits or is
inherited. Others change attributes of files (chattr), terminals and devices."""
_HANDLES = (*range(6), 1030, 1031, 1032, 1033, 1034)
"""What fcntl may do: copies and flags of handles, to ask for a lock, sizes of pipes, seals. No lock or lease,
and nobody who would be sent signals."""
_UNKNOWN = 470
"""The first call that this list does not know; on x86_64, those of another kind of program are beyond it."""
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_AT, _SECOND_AT, _THIRD_AT = 0, 4, 16, 24, 32
"""Where the kernel shows which call it is, of which architecture, and the lower halves of its arguments."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SECCOMP, _FILTER = 22, 2


class _Line(NamedTuple):
    """Of the program, with the names of the parts to go to; "" is the next line."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


def program(*, alone: bool, scoped: bool = True) -> bytes:
    """What the kernel asks for every call; parts only lead to parts behind them.

    `alone`: there is no private world. `scoped`: Landlock refuses signals to processes outside.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or (alone and "fchmod" not in machine.calls):
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    calls = {**machine.calls, **_EVERYWHERE}
    looked_at = {"socket": "refuse" if alone else "socket", "socketpair": "pair"}
    if alone:
        looked_at.update(dict.fromkeys(_OF_A_PROCESS, "process"), ioctl="ioctl", fcntl="fcntl")
        looked_at.update(dict.fromkeys(_SIGNALS, "allow" if scoped else "refuse"))
    refused = calls if alone else set(_NOWHERE) & calls.keys()
    leads = {**dict.fromkeys(refused, "refuse"), **looked_at}
    parts = {
        "": [
            _Line(_LOAD, _MACHINE_AT),
            _Line(_EQUAL, machine.audit, no="refuse"),
            _Line(_LOAD, _NUMBER_AT),
            _Line(_AT_LEAST, _UNKNOWN, yes="unknown"),
            *(_Line(_EQUAL, calls[name], yes=part) for name, part in leads.items()),
            _Line(_RETURN, _ALLOW),
        ],
        "process": [_Line(_LOAD, _FIRST_AT), _Line(_EQUAL, 0, yes="allow", no="refuse")],
        "socket": [
            _Line(_LOAD, _FIRST_AT),
            *(_Line(_EQUAL, family, yes="allow") for family in (_UNIX, _INET, _INET6)),
            _Line(_EQUAL, _NETLINK, no="refuse"),
            _Line(_LOAD, _THIRD_AT),
            _Line(_EQUAL, 0, yes="allow", no="refuse"),  # addresses and routes, of its own network
        ],
        "pair": [
            _Line(_LOAD, _FIRST_AT),
            _Line(_EQUAL, _UNIX, no="refuse"),
            _Line(_LOAD, _SECOND_AT),
            _Line(_AND, 0xF),
            _Line(_EQUAL, _PACKETS, yes="allow"),
            _Line(_EQUAL, _STREAM, yes="allow", no="refuse"),
        ],
        "fcntl": [
            _Line(_LOAD, _SECOND_AT),
            *(_Line(_EQUAL, command, yes="allow") for command in _HANDLES),
            _Line(_RETURN, _ERRNO | errno.EPERM),
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


def install(lines: bytes) -> None:
    """From here on, for this process and all that it starts."""
    buffer = ctypes.create_string_buffer(lines, len(lines))
    header = struct.pack("HxxxxxxP", len(lines) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    check(libc.prctl(_SECCOMP, _FILTER, header, 0, 0), "seccomp")
