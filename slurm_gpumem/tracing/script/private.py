"""Run a command in a private copy of the machine's files, without network.

    python -I private.py REPORT MEGABYTES -- COMMAND

Standard library only, and started as a program of its own. In a user namespace of its own (no privilege
needed where the kernel allows it) every file system is covered by an overlay whose upper layer is a small
file system in memory: the command writes, renames and deletes as it likes, and nothing of the user's changes.
REPORT is the one folder that is shared with the outside. Where namespaces are not allowed, Landlock refuses
writes instead; where neither is there, the tracer's own interception in Python is all there is. What was
achieved is written into REPORT/private.json.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
from typing import Dict, List, NoReturn, Tuple

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
_BIND, _REC, _PRIVATE, _RDONLY, _REMOUNT = 4096, 16384, 1 << 18, 1, 32
_KERNELS = {
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "securityfs", "debugfs", "tracefs",
    "bpf", "pstore", "configfs", "fusectl", "hugetlbfs", "autofs", "binfmt_misc", "rpc_pipefs", "efivarfs",
}  # fmt: skip
_KEPT = ("/proc", "/sys", "/dev")
_MOST_CHANGED = 300
_PDEATHSIG, _SUBREAPER = 1, 36
"""prctl: end with the process that started us; orphans of the command become our children."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(
        _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data) if data else None), f"mount {target}"
    )


def _mounts() -> List[Tuple[str, str]]:
    """(mount point, file system) of everything mounted, parents first."""
    found: Dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            point = left.split()[4].encode().decode("unicode_escape")
            found[point] = right.split()[0]
    return sorted(found.items(), key=lambda item: item[0].count("/") if item[0] != "/" else 0)


def _enter_user_namespace(extra: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEWUSER | _NEWNS | extra), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


class _Cover:
    """Covers the machine's folders with overlays below a new root.

    A folder with other file systems mounted inside cannot be covered as one (the kernel would show what they
    hide), so it is made again, entry by entry.
    """

    def __init__(self, base: str, report: str) -> None:
        self._base, self._report = base, report
        self._kinds = dict(_mounts())
        # Folders that everybody may write to and others own cannot be copied up: they get their own covers.
        for point in ("/var/tmp", os.getcwd(), *map(os.environ.get, ("HOME", "TMPDIR", "SCRATCH"))):
            if point and os.path.isdir(point) and os.stat(point).st_uid != os.geteuid():
                self._kinds.setdefault(os.path.realpath(point), "")
        self._number = 0
        self.root = os.path.join(base, "root")
        os.mkdir(self.root)

    def folder(self, path: str) -> None:
        """Make `path` appear below the new root; its target is there already."""
        target = self.root + path if path != "/" else self.root
        if path in _KEPT or self._kinds.get(path) in _KERNELS:
            _mount(path, target, "", _BIND | _REC)
        elif any(point != path and _below(point, path) for point in self._kinds):
            for entry in self._entries(path):
                try:
                    self._entry(os.path.join(path, entry.name), entry)
                except FileNotFoundError:
                    continue  # removed by somebody in between
        else:
            self._overlay(path, target)

    def _entries(self, path: str) -> List[os.DirEntry[str]]:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    def _entry(self, path: str, entry: os.DirEntry[str]) -> None:
        target = self.root + path
        if path == self._report:
            return
        if entry.is_symlink():
            os.symlink(os.readlink(path), target)
        elif entry.is_dir():
            os.mkdir(target, entry.stat().st_mode & 0o7777 | 0o700)
            self.folder(path)
        else:
            with open(target, "wb"):
                pass
            _mount(path, target, "", _BIND)

    def _overlay(self, path: str, target: str) -> None:
        self._number += 1
        upper, work = (os.path.join(self._base, f"{name}{self._number}") for name in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        os.chmod(upper, os.stat(path).st_mode & 0o7777)
        lower = path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        _mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work},userxattr")


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder if folder.endswith("/") else folder + "/")


def _overlays(report: str, megabytes: int) -> str:
    """Cover all file systems; returns the new root."""
    _mount("", "/", "", _REC | _PRIVATE)
    base = os.path.join(report, "private")
    os.mkdir(base)
    _mount("gpumem", base, "tmpfs", 0, f"size={megabytes}m,mode=0755")
    cover = _Cover(base, report)
    cover.folder("/")
    os.makedirs(cover.root + report, exist_ok=True)
    _mount(report, cover.root + report, "", _BIND)
    return cover.root


def _loopback_up() -> None:
    """A network namespace starts with its loopback down; distributed training talks over it."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 1 | 64)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


# -- Landlock ------------------------------------------------------------------------------------

_LANDLOCK_WRITES = 0
for _bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12):
    # write file, remove dir, remove file, make char, dir, reg, sock, fifo, block, sym
    _LANDLOCK_WRITES |= 1 << _bit


def _refuse_writes(allowed: List[str]) -> None:
    """Let the kernel refuse changes outside `allowed`, for this process and all that it starts."""
    abi = _check(_libc.syscall(444, None, 0, 1), "landlock")
    rights = _LANDLOCK_WRITES | (1 << 14 if abi >= 3 else 0)  # truncate
    attributes = struct.pack("Q", rights)
    ruleset = _check(_libc.syscall(444, attributes, len(attributes), 0), "landlock_create_ruleset")
    for path in allowed:
        if not os.path.exists(path):
            continue
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        own = rights if os.path.isdir(path) else rights & (1 << 1 | 1 << 14)
        rule = struct.pack("=Qi", own, handle)
        _check(_libc.syscall(445, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(handle)
    _check(_libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.syscall(446, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _private_world(report: str, megabytes: int) -> str:
    """Namespaces of our own, all files covered, no network but the loopback; returns the new root."""
    _enter_user_namespace(_NEWNET | _NEWPID)
    root = _overlays(report, megabytes)
    _loopback_up()
    return root


def _works(report: str, megabytes: int) -> str:
    """Why a private world cannot be made here, "" where it can: tried in a child that ends at once."""
    trial = os.path.join(report, "trial")
    os.mkdir(trial)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            here = os.getcwd()
            writable = os.access(here, os.W_OK)
            os.chroot(_private_world(trial, megabytes))
            os.chdir(here)
            if writable:
                with open(f".gpumem-{os.getpid()}", "wb") as probe:
                    probe.write(b"x")
                os.unlink(probe.name)
        except OSError as error:
            os.write(write_end, str(error).encode() or b"refused")
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        why = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


def main(arguments: List[str]) -> int:
    """Set up, run the command, say what it changed in its private copy."""
    report, megabytes, command = os.path.realpath(arguments[0]), int(arguments[1]), arguments[3:]
    why = _works(report, megabytes)
    if why:
        files = "python"
        try:
            _refuse_writes([report, "/dev", "/proc"])
            files = "landlock"
            # Many programs need a folder for temporary files; this one may be written to.
            os.environ["TMPDIR"] = os.path.join(report, "tmp")
            os.mkdir(os.environ["TMPDIR"])
        except OSError as error:
            why += f"; {error}"
        _write(report, "private.json", {"files": files, "network": "python", "why": why})
        return _with_all_descendants(command)
    here = os.getcwd()
    root = _private_world(report, megabytes)
    _write(report, "private.json", {"files": "overlay", "network": "namespace", "why": ""})
    _libc.prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # The first child in a process namespace is its init: when it ends, so does everything in it.
    child = os.fork()
    if child == 0:
        _libc.prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        os.chroot(root)
        os.chdir(here)
        _mount("proc", "/proc", "proc", 0)
        _become(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    _write(report, "changed.json", _changed(os.path.join(report, "private")))
    return _shell_code(status)


def _with_all_descendants(command: List[str]) -> int:
    """Run the command without a process namespace, and end with it whatever it has started."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    child = os.fork()
    if child == 0:
        _become(command)

    def end(*_: object) -> None:
        _end_descendants()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    while True:
        pid, status = os.wait()
        if pid == child:
            _end_descendants()
            return _shell_code(status)


def _end_descendants() -> None:
    """Again and again, since what starts others may be faster than one look."""
    while True:
        found = _descendants(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            while os.waitpid(-1, 0 if found else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _descendants(parent: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    above = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(above, []).append(int(name))
    found, waiting = [], [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _changed(base: str) -> List[str]:
    """Paths that the command wrote or removed in its private copy, the first few hundred."""
    found: List[str] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mounts = file.readlines()
    for line in mounts:
        fields = line.split()
        options = dict(word.partition("=")[::2] for word in line.rsplit(" ", 1)[1].strip().split(","))
        upper = options.get("upperdir", "")
        if not upper.startswith(base):
            continue
        point = fields[4][len(base) + len("/root") :]
        for folder, _, names in os.walk(upper):
            for name in names:
                path = os.path.join(point, os.path.relpath(os.path.join(folder, name), upper))
                found.append(path)
                if len(found) >= _MOST_CHANGED:
                    return found
    return sorted(found)


def _write(report: str, name: str, value: object) -> None:
    path = os.path.join(report, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


def _become(command: List[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
