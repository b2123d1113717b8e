"""What a traced command cannot reach beside files: shared memory, sockets, agents, the network, processes."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

import pytest

from tests.tracing.layouts.layouts import BY_NAME, Layout, in_python, in_shell, run_in

LOCAL, LANDLOCK = BY_NAME["local home"], BY_NAME["Landlock only"]
both = pytest.mark.parametrize("layout", [LOCAL, LANDLOCK], ids=["private copy", "Landlock only"])
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


def test_the_loopback_and_sockets_of_its_own_work_in_a_private_copy() -> None:
    code = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "own = socket.socket(socket.AF_UNIX); own.bind('own.socket'); own.listen()\n"
        "socket.socket(socket.AF_UNIX).connect('own.socket')\nprint('talks')"
    )
    assert run_in(LOCAL, in_python(code))["output"].strip() == "talks"


def test_a_process_outside_is_not_seen_in_a_private_copy() -> None:
    found = run_in(LOCAL, in_shell("ls -d /proc/$OUTSIDE && echo seen; ps ax | grep -c 'sleep 60[0]'"))
    assert found["output"].split() == ["0"]


def test_no_namespace_or_capability_lifts_it() -> None:
    shell = (
        "unshare -Urm sh -c 'mount -o remount,rw /home; mount -o remount,bind,rw /; umount -l /home/user; "
        "echo x > /home/user/keep.txt'; grep CapEff /proc/self/status"
    )
    found = run_in(LOCAL, in_shell(shell))
    assert found["changed"] == []
    assert found["output"].split()[-1] == "0" * 16


_SILENT = """
import ctypes, os, time
handle = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
assert ctypes.CDLL(None).mount(b"silent", b"/mnt", b"fuse", 0, options) == 0
print("ready", flush=True)
time.sleep(600)
"""


def test_a_server_that_does_not_answer_holds_up_no_trace() -> None:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this machine has no FUSE")
    site = replace(LOCAL, daemons=(("-c", _SILENT),))
    found = run_in(site, in_shell("ls -d /mnt/* /usr/bin/env; echo x > new"))
    assert found["output"].split() == ["/usr/bin/env"], found["errors"]
    assert found["private"]["files"] == "overlay", found["private"]


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
