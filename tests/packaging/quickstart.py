"""A Debian with a Slurm of its own in namespaces, on which the quick start for administrators is followed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List

from slurm_gpumem.devcluster import ledger
from tests.packaging.test_clean_roots import BACKUPS, DEBS, NOT_OURS, ROOT, ROOTS, Tree
from tests.support.waiting import until

PAGE = ROOT / "docs" / "admin" / "quickstart.md"
SLURM_CONF = """\
ClusterName=site
SlurmctldHost=n1(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=5
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000 Gres=gpu:a100:2
PartitionName=gpu Nodes=n1 Default=YES DefMemPerCPU=2000 MaxTime=1-0
"""
GRES_CONF = "AutoDetect=off\nNodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1]\n"
SYSTEMCTL = """\
#!/bin/sh
# Stands in for systemd, which does not run here.
case "$1 $2" in
"restart slurmctld" | "restart slurmd") ;;
*) exit 0 ;;
esac
pid=$(cat "/run/$2.pid" 2>/dev/null)
[ -z "$pid" ] || { kill "$pid"; while [ -e "/proc/$pid/exe" ]; do sleep 0.1; done; }
cd / && exec "/usr/sbin/$2"
"""
_LINES = '\n[devcluster]\nledger = "/srv/gpus"\n'
SLURM_PACKAGES = "slurmctld slurmd slurm-client munge"
RECOMMENDED = "python3 python3-jinja2 gcc libc6-dev systemd logrotate"
"""What ours need and apt would bring: installed before, so that the difference is ours alone."""


def with_gpus(toml: str, *, there: bool = True) -> str:
    """gpumem.toml with simulated GPUs for those that are not in this machine; or again without."""
    return toml + _LINES if there else toml.replace(_LINES, "")


def blocks() -> List[str]:
    """The page's commands, a text for each block."""
    return re.findall(r"^```\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Host(Tree):
    """The tree with processes and a name of its own, which live until it is closed."""

    def start(self) -> None:
        inside = (
            f"cd '{self.root}' && hostname n1 && mount -t proc proc proc && mount -t tmpfs tmpfs run && "
            "exec chroot . /bin/sh -c 'cd /; echo ready; exec sleep infinity'"
        )
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", inside],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._init = children.read_text().split()[0]

    def close(self) -> None:
        os.kill(int(self._init), signal.SIGKILL)  # and with it all that runs there
        self._holder.wait()

    def call(self, command: str, *, fails: bool = False, folder: str = "/srv/release") -> str:
        """What a root's shell there says to it."""
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        environ.update(DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
        enter = ["nsenter", "-t", self._init, "-m", "-u", "-p", "-r", "-w"]
        done = subprocess.run(
            [*enter, "/bin/bash", "-c", f"cd {folder} && {command}"],
            env=environ, input="y\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        if "sinfo" not in command:
            print(f"$ {command}\n{done.stdout}", flush=True)
        assert (done.returncode != 0) is fails, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    def sums(self) -> Dict[str, str]:
        """What every file of the tree holds, who may read it, and where links lead."""
        found = {}
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if (
                name.startswith((*NOT_OURS, "run/", "srv/", "var/lib/slurm"))
                or name in BACKUPS
                or "__pycache__" in name
            ):
                continue
            about = path.lstat()
            content = (
                os.readlink(path) if path.is_symlink()
                else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file()
                else ""
            )  # fmt: skip
            found[name] = f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {content}"
        return found

    def restart(self, commands: str) -> None:
        """Of daemons, until Slurm answers again and the node is there."""
        self.call(commands)
        until(lambda: "idle" in self.call("sinfo -h -o %T || true"))

    def submits(self, commands: str) -> str:
        """What commands say that submit a job; again where this machine was too slow for the filter."""
        while "more than 3 seconds" in (said := self.call(commands)):
            self.call("scancel -u root")
        return said

    def reported(self) -> Dict[int, str]:
        """The state of each job as `gpumem report` has it."""
        table = json.loads(self.call("gpumem report --all-time --json --update 2>/dev/null"))
        return {job["job_id"]: job["state"] for job in table["jobs"]}


def make_host(suite: str, root: Path) -> Iterator[Host]:
    """A tree with a Slurm that runs; removed at the end."""
    archive = ROOTS / f"{suite}-slurm.tar"
    if not archive.exists():
        _make_archive(suite, archive)
    root.mkdir()
    for folder in (root, *root.parents[:2]):
        folder.chmod(0o755)
    subprocess.run(["tar", "-xpf", str(archive), "-C", str(root)], check=True)
    host = Host(root)
    host.start()
    try:
        make_site(host, [*DEBS.glob("*.deb")])
        yield host
    finally:
        host.close()
        shutil.rmtree(root)


def _make_archive(suite: str, archive: Path) -> None:
    plain = ROOTS / f"{suite}.tar"
    ROOTS.mkdir(parents=True, exist_ok=True)
    if not plain.exists():
        subprocess.run([str(ROOT / "tests/packaging/make-root.sh"), suite, str(plain)], check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xpf", str(plain), "-C", folder], check=True)
        install = "apt-get install -y -qq --no-install-recommends"
        Tree(Path(folder)).run(f"apt-get update -qq && {install} {SLURM_PACKAGES} {RECOMMENDED}")
        subprocess.run(["tar", "-cpf", f"{archive}.new", "-C", folder, "."], check=True)
    Path(f"{archive}.new").rename(archive)


def next_versions(host: Host) -> None:
    """Version 999 of every package, beside those that are there."""
    for name in ("client", "node", "controller"):
        deb = next(host.root.glob(f"srv/release/slurm-gpumem-{name}_*.deb")).name
        host.call(
            f"rm -rf /srv/again && dpkg-deb -R {deb} /srv/again && "
            "sed -i -e 's/^Version: .*/Version: 999/' -e 's/(= [0-9.]*)/(= 999)/' /srv/again/DEBIAN/control "
            f"&& dpkg-deb -b /srv/again slurm-gpumem-{name}_999.deb"
        )


def make_site(host: Host, packages: List[Path]) -> None:
    """Slurm as the distribution has it, with two GPUs, and the files of a release."""
    release = host.root / "srv" / "release"
    release.mkdir(parents=True)
    for path in packages:
        shutil.copy(path, release)
    ledger.create(_made(host.root / "srv" / "gpus"), {"n1": [ledger.StandIn(40 * 1024, "a100")] * 2})
    for number in range(2):
        os.mknod(host.root / "dev" / f"nvidia{number}", 0o20666, os.makedev(1, 3))
    etc = host.root / "etc" / "slurm"
    etc.mkdir(parents=True, exist_ok=True)
    (etc / "slurm.conf").write_text(SLURM_CONF)
    (etc / "gres.conf").write_text(GRES_CONF)
    version = host.call("sinfo --version").split()[-1]
    plugin = "disabled" if tuple(map(int, version.split(".")[:2])) >= (23, 11) else "cgroup/v1"
    (etc / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
    # The driver's program, as tests of nodes have it.
    shutil.copy(ROOT / "tests/node/bin/nvidia-cuda-mps-control", host.root / "usr/bin")
    systemctl = host.root / "usr" / "local" / "sbin" / "systemctl"
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    host.call("mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm /run/munge")
    host.call("chown slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm && chown munge /run/munge")
    host.call("setpriv --reuid munge --regid munge --init-groups munged")
    host.call("systemctl restart slurmctld && systemctl restart slurmd")
    until(lambda: "idle" in host.call("sinfo -h -o %T"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
