"""Programs that act for the user elsewhere, by their paths: each acts without a trace, and none in one."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass, replace
from typing import Dict

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from tests.tracing.layouts.layouts import BY_NAME, Layout, in_shell, run_in

LOCAL, LANDLOCK = BY_NAME["local home"], BY_NAME["Landlock only"]
both = pytest.mark.parametrize("layout", [LOCAL, LANDLOCK], ids=["private copy", "Landlock only"])
_AS_USER = "setpriv --reuid=54321 --regid=54321 --clear-groups env HOME=/home/user"
_KNOWN = """
cp /etc/passwd $D/passwd; echo 'user:x:54321:54321::/home/user:/bin/sh' >> $D/passwd
cp /etc/shadow $D/shadow; echo 'user:*:20000:0:99999:7:::' >> $D/shadow
mount --bind $D/passwd /etc/passwd; mount --bind $D/shadow /etc/shadow
"""
_SPOOL = """
mount -t tmpfs -o mode=755 none /var/spool/cron; cd /var/spool/cron; mkdir crontabs atjobs atspool
chown root:crontab crontabs; chmod 1730 crontabs
chown daemon:daemon atjobs atspool; chmod 1770 atjobs atspool; echo 01000 > atjobs/.SEQ
chown daemon:daemon atjobs/.SEQ; cd /
"""


@dataclass(frozen=True)
class Program:
    """What somebody's script may start, and how to see from outside whether it did something."""

    path: str
    words: str
    seen: str
    """A command of root's whose output changes when it acts."""
    setup: str = ""
    cleanup: str = ""


_KEY = f"{_KNOWN} {_AS_USER} ssh-keygen -q -t ed25519 -N '' -f /home/user/key\n"
PROGRAMS = {
    "sbatch": Program("/usr/bin/sbatch", "--hold --output=/dev/null --wrap hostname", "squeue --noheader"),
    "scancel": Program(
        "/usr/bin/scancel",
        "$(cat /home/user/job)",
        "squeue --noheader",
        f"cd /home/user; {_AS_USER} sbatch --parsable --hold --output=/dev/null --wrap hostname > job; cd /",
    ),
    "crontab": Program(
        "/usr/bin/crontab",
        "-r",
        "cat /var/spool/cron/crontabs/user || true",
        f"{_KNOWN}{_SPOOL} echo '0 0 * * * true' > $D/table; {_AS_USER} crontab $D/table",
    ),
    "at": Program(
        "/usr/bin/at", "-f /home/user/keep.txt tomorrow", "ls /var/spool/cron/atjobs", _KNOWN + _SPOOL
    ),
    "ssh": Program(
        "/usr/bin/ssh",
        "-F none -i /home/user/key -p $PORT -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
        "127.0.0.1 touch /media/reached",
        "ls /media",
        f"{_KEY} mount -t tmpfs -o mode=1777 none /media; mkdir -p /run/sshd; cp /home/user/key.pub $D/;"
        "ssh-keygen -q -t ed25519 -N '' -f $D/host; /usr/sbin/sshd -f /dev/null -h $D/host -p $PORT "
        "-o ListenAddress=127.0.0.1 -o AuthorizedKeysFile=$D/key.pub -o StrictModes=no -o PidFile=$D/pid;"
        "for n in $(seq 300); do test -s $D/pid && break; sleep 0.1; done; cp $D/pid /dev/shm/layout-sshd",
        "kill $(cat /dev/shm/layout-sshd); rm /dev/shm/layout-sshd",
    ),
    "ssh-add": Program(
        "/usr/bin/ssh-add",
        "-D",
        "SSH_AUTH_SOCK=/home/user/agent ssh-add -l || true",
        f"{_KEY} {_AS_USER} ssh-agent -a /home/user/agent > $D/agent; . $D/agent > $D/said;"
        f"{_AS_USER} ssh-add -q /home/user/key; echo $SSH_AGENT_PID > /dev/shm/layout-agent",
        "kill $(cat /dev/shm/layout-agent); rm /dev/shm/layout-agent",
    ),
}
_OF_SLURM = ("sbatch", "scancel")


def _acted(name: str, layout: Layout, more: Dict[str, str], *, bare: bool) -> bool:
    program = PROGRAMS[name]
    exports = "".join(f"export {key}={value}\n" for key, value in more.items())
    found = run_in(
        replace(layout, watched=("/home",), cleanup=program.cleanup),
        in_shell(f"timeout 30 {program.path} {program.words}"),
        exports + program.setup,
        environment={**more, "SSH_AUTH_SOCK": "/home/user/agent"},
        seen=exports + program.seen,
        bare=bare,
    )
    assert bare or found["changed"] == []
    return bool(found["seen_before"] != found["seen_after"])


def _try(name: str, layout: Layout, more: Dict[str, str]) -> None:
    assert _acted(name, layout, more, bare=True), f"{name} does nothing without a trace either"
    assert not _acted(name, layout, more, bare=False)


@both
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in _OF_SLURM])
def test_a_program_by_its_path_acts_on_nothing(layout: Layout, name: str) -> None:
    needed = [PROGRAMS[name].path, *(["/usr/sbin/sshd"] if name == "ssh" else [])]
    for path in needed:
        if not os.path.exists(path):
            pytest.skip(f"{path} is not installed")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    _try(name, layout, {"PORT": str(port)})


@both
@pytest.mark.parametrize("name", _OF_SLURM)
def test_slurms_commands_by_their_paths_reach_no_running_cluster(
    layout: Layout, name: str, cluster: Cluster
) -> None:
    if os.geteuid() != 0 or shutil.which("sbatch") != "/usr/bin/sbatch":
        pytest.skip("needs root and Slurm in /usr/bin")
    try:
        _try(name, layout, {"SLURM_CONF": str(cluster.layout.slurm_conf)})
    finally:
        cluster.run(["scancel", "--state=PENDING"], check=True)
