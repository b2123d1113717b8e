"""What a traced command cannot reach beside files: shared memory, sockets, agents, the network, processes."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tracing.layouts.layouts import BY_NAME, Layout, in_python, in_shell, run_in

LOCAL, LANDLOCK = BY_NAME["local home"], BY_NAME["Landlock only"]
both = pytest.mark.parametrize("layout", [LOCAL, LANDLOCK], ids=["private copy", "Landlock only"])
_LISTENER = str(Path(__file__).with_name("listener.py"))
_MEMORY = (
    "mount -t tmpfs none /dev/shm; chmod 1777 /dev/shm; echo mine > /dev/shm/kept; chown 54321 /dev/shm/kept"
)


@both
def test_shared_memory_of_others_stays_and_nothing_is_left_in_it(layout: Layout) -> None:
    shell = "rm /dev/shm/kept; echo x > /dev/shm/kept; head -c 8000000 /dev/zero > /dev/shm/left; ls /dev/shm"
    found = run_in(replace(layout, watched=("/home", "/dev/shm")), in_shell(shell), _MEMORY)
    assert found["changed"] == []
    assert found["shm"] == ["kept"]


def test_shared_memory_of_its_own_works() -> None:
    code = (
        "from multiprocessing import Lock, shared_memory\n"
        "with Lock():\n    block = shared_memory.SharedMemory(create=True, size=1000)\n"
        "print(open('/dev/shm/' + block.name, 'rb').seek(0, 2))\nblock.unlink()"
    )
    found = run_in(LOCAL, in_python(code), _MEMORY)
    assert found["output"].strip() == "1000", found["errors"]


@both
def test_no_socket_of_the_session_an_agent_or_a_service_answers(layout: Layout) -> None:
    paths = (
        "/home/user/.agent",
        "/run/user/54321/bus",
        "/srv/service/socket",
        "/var/tmp/gpumem-agent/socket",
    )
    code = (
        "import os, socket\n"
        f"for place in {(*paths, chr(0) + 'gpumem-layout')!r}:\n"
        "    try:\n        socket.socket(socket.AF_UNIX).connect(place)\n        print('reached', place)\n"
        "    except OSError as error:\n        print('closed')\n"
        "try:\n    socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 5)\n"
        "    print('reached port')\nexcept OSError:\n    print('closed')\n"
    )
    port = str(_free_port())
    more = "mount -t tmpfs none /run; mount -t tmpfs -o mode=755 none /srv; rm -rf /var/tmp/gpumem-agent"
    site = replace(
        layout,
        daemons=(("-I", _LISTENER, "/srv/heard", port, *paths),),
        environment={"PORT": port},
        watched=("/home", "/srv"),
    )
    found = run_in(site, in_python(code), more)
    shutil.rmtree("/var/tmp/gpumem-agent")
    assert found["output"].split() == ["closed"] * 6, found["errors"]
    assert found["changed"] == []


def test_the_loopback_and_sockets_of_its_own_work_in_a_private_copy() -> None:
    code = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "own = socket.socket(socket.AF_UNIX); own.bind('own.socket'); own.listen()\n"
        "socket.socket(socket.AF_UNIX).connect('own.socket')\nprint('talks')"
    )
    assert run_in(LOCAL, in_python(code))["output"].strip() == "talks"


@both
def test_a_process_outside_is_neither_signalled_nor_changed(layout: Layout) -> None:
    change = (
        "renice 19 $OUTSIDE; prlimit --pid $OUTSIDE --nofile=1:1; taskset -pc 0 $OUTSIDE; "
        "chrt --idle -p 0 $OUTSIDE; ionice -c 3 -p $OUTSIDE; "
        "echo 500 > /proc/$OUTSIDE/oom_score_adj; echo 9 > /proc/$OUTSIDE/timerslack_ns; true"
    )
    without_trace = run_in(layout, in_shell(change), bare=True)
    assert without_trace["outside_changed"] != []
    found = run_in(layout, in_shell(f"{change}; kill -9 $OUTSIDE; kill -9 -1; true"))
    assert found["outside_lives"]
    assert found["outside_changed"] == []


def test_a_process_outside_is_not_seen_in_a_private_copy() -> None:
    found = run_in(LOCAL, in_shell("ls -d /proc/$OUTSIDE && echo seen; ps ax | grep -c 'sleep 60[0]'"))
    assert found["output"].split() == ["0"]


@both
def test_system_v_memory_and_queues_of_others_stay(layout: Layout) -> None:
    more = "setpriv --reuid=54321 --regid=54321 --clear-groups ipcmk -M 4096 -Q > $D/made"
    found = run_in(layout, in_shell("ipcrm -a; ipcs -m -q | grep -c ^0x"), more)
    left = Path("/proc/sysvipc/shm").read_text().splitlines()
    mine = [line.split()[1] for line in left if f" {54321} " in line]
    assert mine, "the segment was removed"
    for number in mine:
        os.system(f"ipcrm -m {number}")
    for line in Path("/proc/sysvipc/msg").read_text().splitlines()[1:]:
        if line.split()[7] == "54321":
            os.system(f"ipcrm -q {line.split()[1]}")
    assert found["changed"] == []


def test_the_real_root_is_reached_through_no_other_process() -> None:
    shell = (
        'for p in /proc/[0-9]*; do echo x > "$p/root/home/user/keep.txt"; done; ls -d /proc/[0-9]* | wc -l'
    )
    found = run_in(LOCAL, in_shell(shell))
    assert found["changed"] == []
    assert int(found["output"].split()[-1]) < 8


def test_no_namespace_or_capability_lifts_it() -> None:
    shell = (
        "unshare -Urm sh -c 'mount -o remount,rw /home; mount -o remount,bind,rw /; umount -l /home/user; "
        "echo x > /home/user/keep.txt'; grep CapEff /proc/self/status"
    )
    found = run_in(LOCAL, in_shell(shell))
    assert found["changed"] == []
    assert found["output"].split()[-1] == "0" * 16


def test_no_control_group_of_the_users_can_be_mounted() -> None:
    group = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"
    own = f"{group}/gpumem-layout-{os.getpid()}"
    # The login of the user, and the trace with it, is in a group of their own.
    more = f"mkdir {own}; chown -R 54321:54321 {own}; echo $PPID > {own}/cgroup.procs"
    shell = (
        "unshare --user --map-root-user --mount --cgroup sh -c '"
        "mount -t cgroup2 none /tmp && mkdir /tmp/made && echo made'; true"
    )
    leave = (
        f"for p in $(cat {own}/cgroup.procs); do echo $p > {group}/cgroup.procs; done; rmdir {own}/* {own}"
    )
    site = replace(LOCAL, cleanup=leave)
    seen = f"ls -d {own}/*/ || true"
    without_trace = run_in(site, in_shell(shell), more, seen=seen, bare=True)
    if "made" not in without_trace["output"]:
        pytest.skip(f"not possible without a trace either: {without_trace['errors']}")
    assert without_trace["seen_after"] != ""
    assert run_in(site, in_shell(shell), more, seen=seen)["seen_after"] == ""


def test_a_folder_that_is_automounted_later_cannot_be_written_to() -> None:
    site = replace(
        BY_NAME["home on autofs, indirect"], home="/home/user", cwd="/var/tmp", watched=("/media", "/home")
    )
    shell = "for n in other user; do echo x > /home/$n/keep.txt; rm -rf /home/$n/important; done; echo tried"
    more = "fill /media/other; chown -R 54321:54321 /media/other"
    found = run_in(replace(site, environment={"HOME": "/var/tmp"}), in_shell(shell), more)
    assert [path for path in found["changed"] if path.startswith("/media")] == []
    assert found["output"].strip() == "tried"


_MOUNTS = """
import ctypes, os, struct
libc, home = ctypes.CDLL(None, use_errno=True), os.environ["HOME"].encode()
libc.syscall.restype = ctypes.c_long

def tree(path, flags):
    return libc.syscall(428, -100, path, flags)

def made_writable(handle, flags):
    return libc.syscall(442, handle, b"", 0x1000 | flags, struct.pack("QQQQ", 0, 1, 0, 0), 32)

os.makedirs("/tmp/at", exist_ok=True)
for path in (b"/", os.path.dirname(home), home):
    for recursive in (0, 0x8000):
        handle = tree(path, 1 | recursive)
        if handle >= 0:
            made_writable(handle, recursive)
            libc.syscall(429, handle, b"", -100, b"/tmp/at", 4)
    for flags in (4096, 4096 | 16384, 8192):
        libc.mount(path, b"/tmp/at", None, flags, None)
    libc.umount2(path, 2)
    for place in (path, b"/tmp/at"):
        libc.mount(None, place, None, 32 | 4096, None)
for place in ("/tmp/at", "/tmp/at/user", "/tmp/at/home/user", "/home/user"):
    for name in ("keep.txt", "important/a"):
        try:
            open(os.path.join(place, name), "w").write("gone")
        except OSError:
            pass
print("tried")
"""


def test_no_call_for_mounts_shows_the_files_below_a_private_copy() -> None:
    found = run_in(LOCAL, ["unshare", "-Urm", *in_python(_MOUNTS)])
    assert found["output"].strip() == "tried", found["errors"]
    assert found["changed"] == []


def test_keys_of_the_users_login_stay() -> None:
    calls = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine())
    if calls is None:
        pytest.skip("no numbers of calls for this machine")
    add, control = calls
    begin = "import ctypes; call = ctypes.CDLL(None, use_errno=True).syscall; "
    key = "b'user', b'gpumem-layout'"
    put = f"{begin}assert call({add}, {key}, b'x', 1, -4) > 0"
    find = f"{begin}print(call({control}, 10, -4, {key}, 0) > 0)"
    clear = f"{begin}print(call({control}, 10, -4, {key}, 0) > 0, call({control}, 7, -4))"
    user = "setpriv --reuid=54321 --regid=54321 --clear-groups /usr/bin/python3 -c"
    # A process of the user's keeps their keys.
    keeper = (
        "setpriv --reuid=54321 sleep 100 > /dev/null 2>&1"  # holds no pipe that somebody reads to its end
    )
    more = f'{keeper} & echo $! > /dev/shm/layout-keys; {user} "{put}"'
    site = replace(LOCAL, cleanup="kill $(cat /dev/shm/layout-keys); rm /dev/shm/layout-keys")
    found = run_in(site, in_python(clear), more, seen=f'{user} "{find}"')
    assert found["seen_before"].strip() == "True"
    assert found["seen_after"].strip() == "True"
    assert found["output"].split()[0] == "False"


def test_files_that_root_or_others_own_stay_read_only() -> None:
    found = run_in(
        LOCAL, in_shell("echo x > /etc/gpumem-x; touch /usr/gpumem-x; mkdir /gpumem-x; echo tried")
    )
    assert found["output"].strip() == "tried"
    assert not any(os.path.exists(path) for path in ("/etc/gpumem-x", "/usr/gpumem-x", "/gpumem-x"))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
