"""Ways out of a trace, each at a target of its own: `witness.py` makes them, and sees which are reached.

python3 tries.py, as the user, guarded or not, tries everything; $LAYOUT/report is shared with the outside.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Tuple

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
STREAM, DGRAM, RAW, SEQPACKET = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET
_WAIT_S = 60.0


def call(number: int, *arguments: object) -> int:
    """A system call of x86_64 by its number."""
    answer = LIBC.syscall(number, *(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(answer)


def put(path: Any, flags: int = os.O_WRONLY | os.O_NONBLOCK, **more: Any) -> None:
    os.write(os.open(path, flags, **more), b"tried\n")


def opened(path: Any, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags)


def lock(path: Any, how: int = fcntl.LOCK_EX) -> None:
    fcntl.flock(opened(path), how | fcntl.LOCK_NB)


def pair(kind: int) -> socket.socket:
    return socket.socketpair(socket.AF_UNIX, kind)[0]


def linked(path: str) -> str:
    """The second name that the witness gave it, in the user's own folder."""
    return os.path.join(os.environ["HOME"], "linked-" + os.path.basename(path))


def _fifo_by_splice(path: str) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"tried")
    call(275, read_end, None, os.open(path, os.O_WRONLY | os.O_NONBLOCK), None, 5, 0)


def send(target: Any, kind: int, family: int = socket.AF_UNIX) -> None:
    one = socket.socket(family, kind)
    one.settimeout(5)
    if kind == socket.SOCK_DGRAM:
        one.sendto(b"tried", target)
    else:
        one.connect(target)


def _socket_by_proc_root(path: str) -> None:
    os.chdir("/proc/self/root" + os.path.dirname(path))
    send(os.path.basename(path), socket.SOCK_STREAM)


def _datagrams_from_a_pair_connected_again(path: str) -> None:
    one = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    one.connect(path)
    one.send(b"tried")


def _handles_in_datagrams(path: str) -> None:
    handle = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    one = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    one.sendmsg([b"tried"], handle, 0, path)


def _any_other_family(_: None) -> None:
    made = []
    for family in set(range(48)) - {
        socket.AF_UNIX,
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_NETLINK,
        40,
        38,
    }:
        for kind in (1, 2, 3, 5):
            try:
                made.append(socket.socket(family, kind))
            except OSError:
                continue
    if not made:
        raise PermissionError


def _memory_written(number: int) -> None:
    LIBC.shmat.restype = ctypes.c_void_p
    at = LIBC.shmat(number, None, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memmove(at, b"tried", 5)


def _signal_by_input(pid: int) -> None:
    read_end, write_end = os.pipe()
    fcntl.fcntl(read_end, fcntl.F_SETOWN, pid)
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write_end, b"x")


def _its_memory_by_call(pid: int) -> None:
    wanted = ctypes.create_string_buffer(b"tried", 5)
    here = struct.pack("PN", ctypes.addressof(wanted), 5)
    call(311, pid, here, 1, struct.pack("PN", _address(pid), 5), 1, 0)


def text(path: str, content: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(content)


def _address(pid: int) -> int:
    with open("/srv/files/addresses.json", encoding="ascii") as file:
        return int(json.load(file)[str(pid)])


def _file_replaced(path: str) -> None:
    text(path + ".new", "x")
    os.replace(path + ".new", path)


def _file_mapped(path: str) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:1] = b"X"


def _folder_filled(path: str) -> None:
    for make in (os.mkdir, os.mkfifo, lambda one: os.symlink("/", one)):
        make(f"{path}/{make.__name__}")


def _in_own_namespace(path: str, shell: str) -> None:
    env = {**os.environ, "T": path}
    subprocess.run(
        ["unshare", "-Urm", "sh", "-c", shell], env=env, capture_output=True, timeout=20, check=True
    )


def _by_mount_calls(path: str) -> None:
    """Every way that the kernel knows to another view of a tree."""
    at = b"/tmp"
    for tree in (b"/", b"/srv", b"/srv/files"):
        for flags in (1, 1 | 0x8000):
            handle = LIBC.syscall(428, -100, tree, flags)
            if handle >= 0:
                LIBC.syscall(442, handle, b"", 0x1000 | (flags & 0x8000), struct.pack("QQQQ", 0, 1, 0, 0), 32)
                LIBC.syscall(429, handle, b"", -100, at, 4)
        for flags in (4096, 4096 | 16384, 8192):
            LIBC.mount(tree, at, None, flags, None)
        for point in (tree, at):
            LIBC.mount(None, point, None, 32 | 4096, None)
        for place in (path, *("/tmp" + path[len(one) :] for one in ("", "/srv", "/srv/files"))):
            try:
                text(place, "gone")
            except OSError:
                continue


TRIES: Dict[str, Tuple[str, Callable[[Any], object]]] = {
    # FIFOs
    "fifo": ("fifo", lambda at: put(at)),
    "fifo_for_reading_and_writing": ("fifo", lambda at: put(at, os.O_RDWR | os.O_NONBLOCK)),
    "fifo_by_hard_link": ("fifo", lambda at: put(linked(at))),
    "fifo_made_later": ("later fifo", lambda at: put(at)),
    "fifo_by_folder_handle": (
        "fifo",
        lambda at: put(os.path.basename(at), dir_fd=os.open(os.path.dirname(at), os.O_PATH | os.O_DIRECTORY)),
    ),
    "fifo_by_proc_root": ("fifo", lambda at: put("/proc/self/root" + at)),
    "fifo_reopened": ("fifo", lambda at: put(f"/proc/self/fd/{os.open(at, os.O_PATH)}")),
    "fifo_by_sendfile": (
        "fifo",
        lambda at: os.sendfile(
            os.open(at, os.O_WRONLY | os.O_NONBLOCK), os.open("/etc/passwd", os.O_RDONLY), 0, 10
        ),
    ),
    "fifo_by_splice": ("fifo", _fifo_by_splice),
    "fifo_in_ones_own_folder": ("own fifo", lambda at: put(at)),
    "fifo_emptied": ("full fifo", lambda at: os.read(os.open(at, os.O_RDONLY | os.O_NONBLOCK), 100)),
    # Sockets
    "socket_by_path": ("stream", lambda at: send(at, STREAM)),
    "socket_by_hard_link": ("stream", lambda at: send(linked(at), STREAM)),
    "socket_by_proc_root": ("stream", _socket_by_proc_root),
    "socket_in_ones_own_folder": ("own stream", lambda at: send(at, STREAM)),
    "socket_made_later": ("later stream", lambda at: send(at, STREAM)),
    "socket_of_packets": ("seqpacket", lambda at: send(at, SEQPACKET)),
    "datagrams": ("dgram", lambda at: send(at, DGRAM)),
    "datagrams_made_later": ("later dgram", lambda at: send(at, DGRAM)),
    "datagrams_from_a_pair": ("dgram", lambda at: pair(DGRAM).sendto(b"tried", at)),
    "datagrams_from_a_pair_connected_again": ("dgram", _datagrams_from_a_pair_connected_again),
    "datagrams_from_a_raw_pair": ("dgram", lambda at: pair(RAW).sendto(b"tried", at)),
    "handles_in_datagrams": ("dgram", _handles_in_datagrams),
    "abstract_socket": ("abstract stream", lambda at: send("\x00" + at, STREAM)),
    "abstract_datagrams": ("abstract dgram", lambda at: send("\x00" + at, DGRAM)),
    "abstract_datagrams_from_a_pair": (
        "abstract dgram",
        lambda at: pair(DGRAM).sendto(b"tried", "\x00" + at),
    ),
    "tcp": ("tcp", lambda at: send(("127.0.0.1", at), STREAM, socket.AF_INET)),
    "tcp_as_ipv6": ("tcp", lambda at: send(("::ffff:127.0.0.1", at), STREAM, socket.AF_INET6)),
    "udp": ("udp", lambda at: send(("127.0.0.1", at), DGRAM, socket.AF_INET)),
    "vsock": ("", lambda _: socket.socket(40, STREAM)),
    "crypto_sockets": ("", lambda _: socket.socket(38, SEQPACKET)),
    "netlink_events_of_the_kernel": ("", lambda _: socket.socket(socket.AF_NETLINK, DGRAM, 15)),
    "generic_netlink": ("", lambda _: socket.socket(socket.AF_NETLINK, RAW, 16)),
    "any_other_family": ("", _any_other_family),
    "queue_for_io": ("", lambda _: call(425, 4, bytes(120))),
    # Locks on files of others
    "flock": ("locked", lambda at: lock(at)),
    "shared_flock": ("locked", lambda at: lock(at, fcntl.LOCK_SH)),
    "flock_of_a_later_file": ("later locked", lambda at: lock(at)),
    "flock_of_a_folder": ("locked folder", lambda at: lock(at)),
    "flock_by_hard_link": ("locked", lambda at: lock(linked(at))),
    "record_lock": ("locked", lambda at: fcntl.lockf(opened(at), fcntl.LOCK_SH)),
    "record_lock_of_an_open_file": (
        "locked",
        lambda at: fcntl.fcntl(opened(at), 37, struct.pack("hhqqi4x", 0, 0, 0, 0, 0)),
    ),
    "record_lock_in_ones_own_folder": ("own locked", lambda at: fcntl.lockf(opened(at), fcntl.LOCK_SH)),
    "lease": ("own locked", lambda at: fcntl.fcntl(opened(at), fcntl.F_SETLEASE, fcntl.F_RDLCK)),
    "lease_for_writing": ("own locked", lambda at: fcntl.fcntl(opened(at), fcntl.F_SETLEASE, fcntl.F_WRLCK)),
    # Shared memory, queues, keys
    "memory_written": ("segment", _memory_written),
    "semaphore_raised": ("semaphore", lambda at: call(65, at, struct.pack("Hhh", 0, 1, 0), 1)),
    "message_sent": ("queue", lambda at: call(69, at, struct.pack("q8s", 1, b"tried"), 8, 0)),
    "message_taken": ("full queue", lambda at: call(70, at, bytes(64), 8, 0, 2048)),
    "posix_message_sent": (
        "posix queue",
        lambda at: call(
            242, call(240, at.encode(), os.O_WRONLY | os.O_NONBLOCK, 0, None), b"tried", 5, 0, None
        ),
    ),
    "shared_memory_file": ("shm", lambda at: put(at, os.O_RDWR)),
    "key_revoked": ("key", lambda at: call(250, 3, at)),
    "key_updated": ("key", lambda at: call(250, 2, at, b"tried", 5)),
    "key_given_a_time_limit": ("key", lambda at: call(250, 15, at, 1)),
    # Processes of the same user
    "signal_to_end": ("process", lambda at: os.kill(at, signal.SIGTERM)),
    "signal_to_stop": ("process", lambda at: os.kill(at, signal.SIGSTOP)),
    "signal_to_its_group": ("process", lambda at: os.killpg(at, signal.SIGKILL)),
    "signal_to_a_thread": ("process", lambda at: call(234, at, at, signal.SIGKILL)),
    "signal_with_a_value": (
        "process",
        lambda at: call(129, at, signal.SIGKILL, struct.pack("iiiiii104x", signal.SIGKILL, 0, -1, 0, 0, 0)),
    ),
    "signal_by_handle": ("process", lambda at: signal.pidfd_send_signal(os.pidfd_open(at), signal.SIGKILL)),
    "signal_by_input": ("process", _signal_by_input),
    "traced": ("process", lambda at: call(101, 16902, at, None, None)),
    "traced_and_stopped": ("process", lambda at: call(101, 16, at, None, None)),
    "its_memory_by_file": (
        "process",
        lambda at: os.pwrite(os.open(f"/proc/{at}/mem", os.O_RDWR), b"tried", _address(at)),
    ),
    "its_memory_by_call": ("process", _its_memory_by_call),
    "its_handles": ("", lambda _: call(438, os.pidfd_open(int(os.environ["OUTSIDE"])), 1, 0)),
    "its_limits": ("process", lambda at: resource.prlimit(at, resource.RLIMIT_NOFILE, (7, 7))),
    "its_priority": ("process", lambda at: os.setpriority(os.PRIO_PROCESS, at, 15)),
    "priority_of_its_group": ("process", lambda at: os.setpriority(os.PRIO_PGRP, at, 15)),
    "its_disk_priority": ("process", lambda at: call(251, 1, at, 3 << 13)),
    "its_cpus": ("process", lambda at: os.sched_setaffinity(at, {min(os.sched_getaffinity(0))})),
    "its_scheduler": ("process", lambda at: os.sched_setscheduler(at, os.SCHED_IDLE, os.sched_param(0))),
    "its_death_by_memory": ("process", lambda at: text(f"/proc/{at}/oom_score_adj", "500")),
    "what_its_core_file_holds": ("process", lambda at: text(f"/proc/{at}/coredump_filter", "0x1")),
    "file_at_its_root": ("process", lambda at: text(f"/proc/{at}/root/srv/files/root-of-{at}", "x")),
    "file_in_its_folder": ("process", lambda at: text(f"/proc/{at}/cwd/folder-of-{at}", "x")),
    "file_that_it_holds": ("process", lambda at: text(f"/proc/{at}/fd/5", "x")),
    # Files
    "file_written": ("file", lambda at: text(at, "gone")),
    "file_truncated": ("file", lambda at: os.truncate(at, 0)),
    "file_removed": ("file", lambda at: os.unlink(at)),
    "file_renamed": ("file", lambda at: os.rename(at, at + ".moved")),
    "file_replaced": ("file", _file_replaced),
    "file_linked": ("file", lambda at: os.link(at, at + ".second")),
    "mode_changed": ("file", lambda at: os.chmod(at, 0)),
    "mode_changed_by_handle": ("file", lambda at: os.fchmod(opened(at), 0)),
    "group_changed": ("file", lambda at: os.chown(at, -1, os.getegid())),
    "times_changed": ("file", lambda at: os.utime(at, (1, 1))),
    "attribute_set": ("file", lambda at: os.setxattr(at, "user.x", b"1")),
    "flags_set": ("file", lambda at: fcntl.ioctl(opened(at), 1074292226, struct.pack("l", 64))),
    "file_mapped": ("file", _file_mapped),
    "hole_made": ("file", lambda at: call(285, os.open(at, os.O_RDWR), 3, 0, 4)),
    "range_copied": (
        "file",
        lambda at: os.copy_file_range(os.open("/etc/passwd", os.O_RDONLY), os.open(at, os.O_RDWR), 4),
    ),
    "file_by_handle_of_it": ("file", lambda at: text(f"/proc/self/fd/{opened(at)}", "gone")),
    "file_by_hard_link": ("file", lambda at: text(linked(at), "gone")),
    "folder_filled": ("folder", _folder_filled),
    "socket_left": ("folder", lambda at: socket.socket(socket.AF_UNIX).bind(at + "/socket")),
    "folder_mounted_writable": (
        "file",
        lambda at: _in_own_namespace(
            at, "mount -o remount,bind,rw / ; mount -o remount,bind,rw /srv; echo x > $T"
        ),
    ),
    "folder_bound_elsewhere": (
        "file",
        lambda at: _in_own_namespace(
            at, "mount --rbind /srv /tmp && umount -l /srv; echo x > /tmp/files/${T##*/}; echo x > $T"
        ),
    ),
    "tree_opened_by_mount_calls": (
        "file",
        lambda at: _in_own_namespace(at, f"exec {sys.executable} -I {__file__} mounts $T"),
    ),
    "terminal_of_the_user": ("terminal", lambda at: put(at, os.O_WRONLY | os.O_NOCTTY)),
}
"""The kind of target, and the try. "own": in the user's folder; "later": made when the trace has begun."""


def until(path: str) -> None:
    end = time.monotonic() + _WAIT_S
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.02)


def tell(report: str, name: str, value: object) -> None:
    path = os.path.join(report, name)
    with open(path + ".made", "w", encoding="ascii") as file:
        json.dump(value, file)
    os.rename(path + ".made", path)


def attempts(report: str) -> None:
    """Everything, each in a process of its own that stays until the witness has looked."""
    text(report + "/begun", "")
    until(report + "/targets.json")
    with open(report + "/targets.json", encoding="ascii") as file:
        targets = json.load(file)
    tried, children = {}, []
    for name, (_, function) in TRIES.items():
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, _answer(function, targets.get(name)).encode())
            signal.pause()
        children.append(child)
        os.close(write_end)
        tried[name] = os.read(read_end, 200).decode() if select.select([read_end], [], [], 30)[0] else "hangs"
    try:
        tell(report, "tried.json", tried)
        until(report + "/observed.json")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def _answer(function: Callable[[Any], object], target: Any) -> str:
    try:
        function(target)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


if __name__ == "__main__":
    if sys.argv[1:2] == ["mounts"]:
        _by_mount_calls(sys.argv[2])
    else:
        attempts(os.environ["LAYOUT"] + "/report")
