"""What a traced command cannot reach beside files: shared memory, sockets, agents, the network, processes."""

from __future__ import annotations

import os
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
    more = "mount -t tmpfs none /run; mount -t tmpfs none /srv; rm -rf /var/tmp/gpumem-agent"
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
def test_a_process_outside_is_neither_seen_nor_signalled_nor_changed(layout: Layout) -> None:
    shell = "kill -9 $OUTSIDE; kill -9 -1; renice 19 $OUTSIDE; prlimit --pid $OUTSIDE --nofile=1; true"
    found = run_in(layout, in_shell(shell))
    assert found["outside_lives"]


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


@both
@pytest.mark.parametrize("program", ["sbatch", "scancel", "crontab", "at", "systemd-run", "loginctl"])
def test_programs_by_their_path_act_on_nothing(layout: Layout, program: str) -> None:
    known = [folder for folder in ("/usr/bin", "/bin") if os.path.exists(f"{folder}/{program}")]
    if not known:
        pytest.skip(f"{program} is not installed")
    words = {
        "sbatch": "--wrap hostname",
        "scancel": "1",
        "crontab": "-r",
        "at": "-f keep.txt now",
        "systemd-run": "--user true",
        "loginctl": "terminate-user user",
    }[program]
    found = run_in(layout, in_shell(f"timeout 20 {known[0]}/{program} {words} && echo acted"))
    assert "acted" not in found["output"]
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


def test_a_folder_that_is_automounted_later_cannot_be_written_to() -> None:
    site = replace(
        BY_NAME["home on autofs, indirect"], home="/home/user", cwd="/var/tmp", watched=("/media", "/home")
    )
    shell = "for n in other user; do echo x > /home/$n/keep.txt; rm -rf /home/$n/important; done; echo tried"
    more = "fill /media/other; chown -R 54321:54321 /media/other"
    found = run_in(replace(site, environment={"HOME": "/var/tmp"}), in_shell(shell), more)
    assert [path for path in found["changed"] if path.startswith("/media")] == []
    assert found["output"].strip() == "tried"


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
