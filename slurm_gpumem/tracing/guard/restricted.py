"""Where no namespace is allowed: Landlock refuses writes, and seccomp what Landlock does not cover.

The command may write to one scratch folder. Changes of modes, owners, times and attributes, sockets, locks,
System V memory, device controls and, before Linux 6.12, signals are refused altogether: neither of the two
can tell by a path or a process whose they are. Landlock before Linux 6.2 cannot refuse to truncate: it counts
as none. What neither can refuse is to read from a FIFO.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Sequence

from slurm_gpumem.tracing.guard import seccomp
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
    refused = seccomp.program(alone=True, scoped=abi >= _SCOPES_ABI)
    prctl(NO_NEW_PRIVS, 1)
    _landlock(abi, scratch)
    seccomp.install(refused)


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
