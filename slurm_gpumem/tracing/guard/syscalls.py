"""The system calls that the guard needs and Python does not have."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from slurm_gpumem.tracing.guard.mounts import all_mounts, is_below

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC = 1, 2, 4, 32, 4096, 16384
PRIVATE = 1 << 18
_KEPT_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1
_MOUNT_SETATTR = 442  # the same number on every architecture
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}
_JOIN_SESSION_KEYRING = 1
PDEATHSIG, CAPBSET_DROP, SET_SECUREBITS, SUBREAPER, NO_NEW_PRIVS = 1, 24, 28, 36, 38
_NOROOT_LOCKED = 0b11
_LAST_CAP = 63

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """OSError where a call failed; else its answer."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """A call by its number; -1 and errno where it fails."""
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    names = [os.fsencode(text) if text else None for text in (source, target, kind)]
    options = os.fsencode(data) if data else None
    check(_libc.mount(*names, ctypes.c_ulong(flags), options), f"mount {target}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    check(_libc.unshare(flags), "unshare")


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one value."""
    check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def make_read_only(path: str, *, below: bool = False) -> None:
    """No write through this mount, and with `below` through none that is mounted inside."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    size = ctypes.c_size_t(len(attributes))
    answer = syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, size)
    if answer < 0 and ctypes.get_errno() == errno.ENOSYS:
        _remount_read_only(path, below=below)  # before Linux 5.12, and in containers that do not know it
        return
    check(answer, f"read-only {path}")


def _remount_read_only(path: str, *, below: bool) -> None:
    """One by one; what else a mount forbids must be said again."""
    for point, options in {one.point: one.options for one in all_mounts()}.items():
        if point == path or (below and is_below(point, path)):
            kept = sum(flag for name, flag in _KEPT_FLAGS.items() if name in options)
            mount("", point, "", REMOUNT | BIND | RDONLY | kept)


def become_root_folder(path: str) -> None:
    """Make this mount the root of all that this process sees; what was there before is gone from it."""
    os.chdir(path)
    check(_libc.pivot_root(b".", b"."), "pivot_root")
    check(_libc.umount2(b".", _DETACH), "umount the old root")
    os.chdir("/")


def leave_keyrings() -> None:
    """An empty session keyring: tickets and keys of the user's login are out of reach."""
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        syscall(number, _JOIN_SESSION_KEYRING, None)  # kernels without keyrings have nothing to leave


def give_up_capabilities() -> None:
    """No program that is started from here on gets a capability, whoever starts it and whatever its mode."""
    prctl(SET_SECUREBITS, _NOROOT_LOCKED)
    for capability in range(_LAST_CAP + 1):
        _libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL beyond the kernel's last one
    prctl(NO_NEW_PRIVS, 1)
