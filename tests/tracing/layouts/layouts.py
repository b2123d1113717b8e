"""Layouts of file systems that sites have, each on the kernel's own, and ways to change something in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from slurm_gpumem.tracing import guard

_HERE = Path(__file__).parent
_GUARD = Path(guard.__file__).parent
_PYTHON = "/usr/bin/python3"
USER = "54321:54321"
COLLEAGUE = "54322:54400"


@dataclass(frozen=True)
class Layout:
    """Where home and working directory are; $D is a folder of the test's own on a disk."""

    name: str
    setup: str
    home: str = "/home/user"
    cwd: str = "/home/user/work"
    environment: Dict[str, str] = field(default_factory=dict)
    watched: Tuple[str, ...] = ("/home", "/media")
    daemons: Tuple[Tuple[str, ...], ...] = ()
    cleanup: str = ""
    """What ends daemons that would keep the layout alive."""
    in_group: bool = False
    without: str = ""
    """"namespaces", "both" for Landlock as well, or "mount_setattr"."""
    inside: str = ""
    """The user's command that starts a container, with the guarded one in it."""
    copies: bool = True
    """Whether what a script writes into its working directory goes to a private copy."""


_PLAIN = """
mkdir -p $D/home/user; mount --bind $D/home /home
"""
FILES = """
fill() { mkdir -p $1/work/runs $1/important; echo precious > $1/keep.txt; echo data > $1/important/a
  echo weights > $1/work/last.ckpt; echo line > $1/work/log.txt; }
"""
_INSTALLED = "command -v {0} > /dev/null || {{ echo '{0} is not installed'; exit 1; }}"
_OWN = f"chown -R {USER} "

LAYOUTS = (
    Layout("local home", f"{_PLAIN} fill /home/user; {_OWN} /home/user"),
    Layout(
        "home below a group's folder of root's",
        "mkdir -p $D/home/chem/user; mount --bind $D/home /home; fill /home/chem/user;"
        f"{_OWN} /home/chem/user",
        home="/home/chem/user",
        cwd="/home/chem/user/work",
    ),
    Layout(
        "home on autofs, indirect",
        f"mkdir -p $D/export/user; mount --bind $D/export /media; fill /media/user; {_OWN} /media/user",
        daemons=((str(_HERE / "automounter.py"), "indirect", "/home", "/media"),),
    ),
    Layout(
        "home on autofs, direct",
        f"mkdir -p $D/export/user $D/home/user; mount --bind $D/export /media; fill /media/user; "
        f"mount --bind $D/home /home; {_OWN} /media/user",
        daemons=((str(_HERE / "automounter.py"), "direct", "/home/user", "/media/user"),),
    ),
    Layout(
        "a volume mounted inside home",
        f"{_PLAIN} mkdir /home/user/volume $D/volume; fill /home/user; fill $D/volume;"
        f"{_OWN} /home/user $D/volume; mount --bind $D/volume /home/user/volume",
    ),
    Layout(
        "working directory on a volume inside home",
        f"{_PLAIN} mkdir /home/user/volume $D/volume; fill /home/user; fill $D/volume;"
        f"{_OWN} /home/user $D/volume; mount --bind $D/volume /home/user/volume",
        cwd="/home/user/volume/work",
    ),
    Layout(
        "working directory in a folder of root's, in a shared one with a volume inside",
        f"{_PLAIN} mkdir -p $D/shared/roots/user $D/shared/volume $D/volume; mount --bind $D/shared /srv;"
        f"chmod 1777 /srv; fill /home/user; fill /srv/roots/user; {_OWN} /home/user /srv/roots/user;"
        "mount --bind $D/volume /srv/volume",
        cwd="/srv/roots/user/work",
        watched=("/home", "/srv"),
        environment={"SCRATCH": "/srv"},
    ),
    Layout(
        "working directory of a colleague",
        f"{_PLAIN} mkdir -p $D/proj/alice; mount --bind $D/proj /srv; fill /home/user; fill /srv/alice;"
        f"{_OWN} /home/user; chown -R {COLLEAGUE} /srv; chmod -R g+rwX /srv",
        cwd="/srv/alice/work",
        watched=("/home", "/srv"),
        in_group=True,
    ),
    Layout(
        "working directory of root's",
        f"{_PLAIN} mkdir -p $D/proj; mount --bind $D/proj /srv; fill /home/user; fill /srv;{_OWN} /home/user",
        cwd="/srv/work",
        watched=("/home", "/srv"),
        copies=False,
    ),
    Layout(
        "own project folder with another group",
        f"{_PLAIN} mkdir -p $D/proj/user; mount --bind $D/proj /srv; fill /home/user; fill /srv/user;"
        f"{_OWN} /home/user; chown -R 54321:54400 /srv/user; find /srv/user -type d -exec chmod g+s {{}} +",
        cwd="/srv/user/work",
        watched=("/home", "/srv"),
        in_group=True,
    ),
    Layout(
        "symlinked home",
        f"mkdir -p $D/home $D/data/user; mount --bind $D/home /home; mount --bind $D/data /media;"
        f"fill /media/user; ln -s /media/user /home/user; {_OWN} /media/user",
        watched=("/home", "/media"),
    ),
    Layout(
        "SCRATCH and TMPDIR elsewhere",
        f"{_PLAIN} mkdir -p $D/scratch/group/user; mount --bind $D/scratch /opt; fill /home/user;"
        f"fill /opt/group/user; mkdir /opt/group/user/tmp; {_OWN} /home/user /opt/group/user",
        environment={"SCRATCH": "/opt/group/user", "TMPDIR": "/opt/group/user/tmp"},
        watched=("/home", "/opt"),
    ),
    Layout(
        "read-only home",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user; mount -o remount,bind,ro /home",
        copies=False,
    ),
    Layout(
        "home on a full file system",
        "truncate -s 4M $D/disk; mkfs.ext4 -q -m 0 $D/disk; mount -o loop $D/disk /home;"
        "mkdir /home/user; fill /home/user;"
        f"{_OWN} /home/user; dd if=/dev/zero of=/home/user/fills bs=64k status=none || true",
    ),
    Layout(
        "home on tmpfs",
        f"mount -t tmpfs none /home; mkdir /home/user; fill /home/user; {_OWN} /home/user",
    ),
    Layout(
        "home on XFS",
        "truncate -s 320M $D/disk; mkfs.xfs -q $D/disk; mount -o loop $D/disk /home;"
        "mkdir /home/user; fill /home/user;"
        f"{_OWN} /home/user",
    ),
    Layout(
        "home on FUSE",
        f"{_INSTALLED.format('bindfs')}; mkdir -p $D/export/user; fill $D/export/user; {_OWN} $D/export;"
        "bindfs -o allow_other $D/export /home",
        watched=("/home",),
        cleanup="umount /home",
    ),
    Layout(
        "home on NFS",
        "grep -qw nfs /proc/filesystems || { echo 'this kernel has no NFS client'; exit 1; }; "
        f"mkdir -p $D/export/user; fill $D/export/user; {_OWN} $D/export;"
        "exportfs -o rw,no_root_squash 127.0.0.1:$D/export; rpcbind || true; rpc.nfsd 2; rpc.mountd;"
        "mount -t nfs 127.0.0.1:$D/export /home",
        watched=("/home",),
        cleanup="umount /home; exportfs -ua; rpc.nfsd 0",
    ),
    Layout(
        "home on an overlay of an overlay",
        "mkdir -p $D/{a/user,u1,w1,m1,u2,w2}; fill $D/a/user;"
        f"{_OWN} $D/a/user; mount -t overlay o -o lowerdir=$D/a,upperdir=$D/u1,workdir=$D/w1 $D/m1;"
        "mount -t overlay o -o lowerdir=$D/m1,upperdir=$D/u2,workdir=$D/w2 /home",
    ),
    Layout(
        "inside a container that hides parts of /proc",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user; mount -t tmpfs none /proc/sys/kernel",
    ),
    Layout(
        "inside a container of bubblewrap's",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user; {_INSTALLED.format('bwrap')}",
        inside="exec bwrap --ro-bind / / --bind /home /home --bind /tmp /tmp --dev /dev --proc /proc "
        '--bind $LAYOUT/report $LAYOUT/report --unshare-all "$@"',
    ),
    Layout(
        "inside a container of Charliecloud's",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user; {_INSTALLED.format('ch-run')}; mkdir $D/image;"
        "mount --bind / $D/image",
        inside="USER=user exec ch-run -b /home:/home -b $LAYOUT/report:$LAYOUT/report -c $PWD "
        '$LAYOUT/image -- "$@"',
    ),
    Layout(
        "a kernel before 5.12",
        f"{_PLAIN} mkdir /home/user/volume $D/volume; fill /home/user; fill $D/volume;"
        f"{_OWN} /home/user $D/volume; mount --bind -o nosuid,noexec $D/volume /home/user/volume",
        without="mount_setattr",
    ),
    Layout(
        "Landlock only",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user",
        without="namespaces",
        copies=False,
    ),
    Layout(
        "neither namespaces nor Landlock",
        f"{_PLAIN} fill /home/user; {_OWN} /home/user",
        without="both",
        copies=False,
    ),
)
BY_NAME = {layout.name: layout for layout in LAYOUTS}


def run_in(layout: Layout, command: Sequence[str], more: str = "", **spec: Any) -> Dict[str, Any]:
    """What a guarded command did in this layout: its output, and the files that it changed outside.

    `more`: shell lines of root's after the layout's own. `bare`: not by us, but by what the command starts.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: file systems are mounted")
    folder = Path(tempfile.mkdtemp(prefix="gpumem-layout-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        (folder / "report").mkdir()
        os.chown(folder / "report", 54321, 54321)
        # The package where the user of the layout can read it.
        copy = folder / "slurm_gpumem" / "tracing" / "guard"
        shutil.copytree(_GUARD, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for above in (copy.parent, copy.parent.parent):
            (above / "__init__.py").touch()
        told = {
            "setup": f"D={folder}\n{FILES}\n{layout.setup}\n{more}",
            "daemons": [
                [_PYTHON, *(word.replace("$D", str(folder)) for word in words)] for words in layout.daemons
            ],
            "environment": {
                "HOME": layout.home,
                "LAYOUT": str(folder),
                **layout.environment,
                **spec.pop("environment", {}),
            },
            "cwd": layout.cwd,
            "watched": layout.watched,
            "cleanup": layout.cleanup,
            "in_group": layout.in_group,
            "without": layout.without,
            "inside": layout.inside,
            "report": str(folder / "report"),
            "start": str(copy / "start.py"),
            "command": list(command),
            **spec,
        }
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", _PYTHON, str(_HERE / "site.py")],
            input=json.dumps(told),
            cwd=_HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=60 + spec.get("timeout_s", 120),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found: Dict[str, Any] = json.loads(done.stdout)
        if "skipped" in found:
            pytest.skip(f"{layout.name}: {found['skipped']}")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_shell(text: str) -> List[str]:
    """A command of the user's shell."""
    return ["sh", "-c", text]


def in_python(text: str) -> List[str]:
    """A command of the system's Python."""
    return [_PYTHON if os.path.exists(_PYTHON) else sys.executable, "-c", text]
