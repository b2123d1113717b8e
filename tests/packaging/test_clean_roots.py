"""Debian packages in clean trees of Debian: installed, used, upgraded, removed (make test-packages)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, List, Set

import pytest

from slurm_gpumem.devcluster import ledger
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEBS = ROOT / "build" / "deb"
ROOTS = ROOT / ".cache" / "package-roots"
PACKAGES = ("client", "node", "controller", "doc")
# Written by apt, dpkg and others whatever is installed.
NOT_OURS = (
    "var/cache/", "var/lib/apt/", "var/lib/dpkg/", "var/log/", "proc/", "sys/", "dev/", "tmp/", "root/",
)  # fmt: skip
BACKUPS = ("etc/group-", "etc/gshadow-", "etc/passwd-", "etc/shadow-", "etc/.pwd.lock", "etc/ld.so.cache")

pytestmark = [
    pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it enters other trees"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap"),
]


class Tree:
    """A Debian of its own in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command: str, *, fails: bool = False) -> str:
        """Run a shell command inside, with mounts that are gone afterwards; its output."""
        inside = f"mount -t proc proc '{self.root}/proc' && exec chroot '{self.root}' /bin/sh -c \"$1\""
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8",
            "HOME": "/root",
        }  # fmt: skip
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", inside, "sh", command],
            env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    def files(self) -> Set[str]:
        """Every file and folder that could be left behind."""
        found = set()
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if not name.startswith(NOT_OURS) and name not in BACKUPS and "__pycache__" not in name:
                found.add(name)
        return found

    def processes(self) -> List[Path]:
        """What still runs inside, such as a sampler after its last job."""
        return [path for path in Path("/proc").glob("[0-9]*/root") if _leads_to(path, self.root)]

    def groups(self) -> Set[str]:
        return {line.partition(":")[0] for line in (self.root / "etc/group").read_text().splitlines()}


def _leads_to(link: Path, target: Path) -> bool:
    try:
        return os.readlink(link) == str(target)
    except OSError:  # It has ended.
        return False


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    suite = request.param
    archive = ROOTS / f"{suite}.tar"
    if not archive.exists():
        ROOTS.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(ROOT / "tests/packaging/make-root.sh"), suite, str(archive)], check=True)
    root = tmp_path_factory.mktemp(suite)
    root.chmod(0o755)
    subprocess.run(["tar", "-xpf", str(archive), "-C", str(root)], check=True)
    found = Tree(root)
    # What ours need, so that the difference is ours alone.
    found.run(
        "apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 systemd logrotate"
    )
    for package in DEBS.glob("*.deb"):
        shutil.copy(package, root / "tmp")
    yield found
    shutil.rmtree(root)


def _next_version(tree: Tree, package: str, *, changes: str = "") -> None:
    """Make slurm-gpumem-PACKAGE 999 of the one in /tmp, with a line more in one of its files."""
    name = f"slurm-gpumem-{package}"
    deb = next((tree.root / "tmp").glob(f"{name}_*.deb")).name
    more = f"echo '# a new line' >>/tmp/again/{changes} &&" if changes else ""
    tree.run(
        f"rm -rf /tmp/again && dpkg-deb -R /tmp/{deb} /tmp/again && {more} "
        f"sed -i -e 's/^Version: .*/Version: 999/' -e 's/(= [0-9.]*)/(= 999)/' /tmp/again/DEBIAN/control && "
        f"dpkg-deb -b /tmp/again /tmp/{name}_999.deb && rm -rf /tmp/again"
    )


def test_the_packages_live_and_leave_without_a_trace(tree: Tree) -> None:
    files, groups = tree.files(), tree.groups()
    debs = " ".join(f"/tmp/slurm-gpumem-{name}_1*.deb" for name in PACKAGES)
    tree.run(f"apt-get install -y -qq --no-install-recommends {debs}")

    # The commands work on the distribution's own Python, for everybody.
    assert "gpumem COMMAND" in tree.run("gpumem --help")
    assert "usage: gpusbatch" in tree.run("gpusbatch --help")
    shutil.copy(ROOT / "docs/examples/resnet50.txt", tree.root / "tmp")
    estimate = "gpumem estimate /tmp/resnet50.txt --batch-size 32 --gpu a100"
    assert "shards" in tree.run(f"setpriv --reuid nobody --regid nogroup --clear-groups {estimate}")
    assert (tree.root / "usr/share/man/man1/gpumem-estimate.1.gz").exists()
    assert (tree.root / "usr/share/bash-completion/completions/gpusbatch").exists()
    assert (tree.root / "usr/share/doc/slurm-gpumem-doc/html/index.html").exists()

    # The hooks find their settings, the site's and the code.
    ledger.create(_made(tree.root / "tmp/ledger"), {"n1": [ledger.StandIn(40 * 1024)]})
    site = tree.root / "etc/slurm/gpumem.toml"
    site.write_text(
        '[node]\nmps = "timeslice"\nsource = "standin"\n'
        '[devcluster]\nledger = "/tmp/ledger"\nidle_exit_s = 1\n'
    )
    shared = "SLURM_JOB_ID=7 SLURM_JOB_UID=65534 SLURM_JOB_USER=nobody SLURM_JOB_GPUS=0 SLURMD_NODENAME=n1"
    tree.run(f"{shared} SLURM_JOB_COMMENT='gpumem/1:req=1024,shards=1' /etc/slurm/gpumem/prolog.sh")
    assert (tree.root / "run/gpumem/jobs/7.json").exists()
    tree.run(f"{shared} /etc/slurm/gpumem/epilog.sh")
    assert not (tree.root / "run/gpumem/jobs/7.json").exists()
    assert any((tree.root / "var/spool/gpumem").glob("7.*.json"))
    until(lambda: not tree.processes())
    site.unlink()
    assert "gpumem-readers" in tree.groups()
    tree.run("logrotate --debug /etc/logrotate.d/slurm-gpumem-controller")

    # An upgrade keeps what was edited and replaces the rest.
    hooks_conf = tree.root / "etc/slurm/gpumem/hooks.conf"
    hooks_conf.write_text(hooks_conf.read_text() + "next_prolog=/bin/true\n")
    for name in PACKAGES:
        _next_version(tree, name, changes="etc/slurm/gpumem.lua" if name == "controller" else "")
    job_submit = tree.root / "etc/slurm/job_submit.lua"
    job_submit.write_text('dofile("/etc/slurm/gpumem.lua")\n')
    os.utime(job_submit, (0, 0))
    tree.run("dpkg -i /tmp/slurm-gpumem-*_999.deb")
    assert hooks_conf.read_text().endswith("next_prolog=/bin/true\n")
    assert (tree.root / "etc/slurm/gpumem.lua").read_text().endswith("# a new line\n")
    assert job_submit.stat().st_mtime > 0
    job_submit.unlink()

    # Hooks that slurm.conf still names are not taken away.
    slurm_conf = tree.root / "etc/slurm/slurm.conf"
    slurm_conf.write_text("Prolog=/etc/slurm/gpumem/prolog.sh\n")
    assert "still names the hooks" in tree.run("apt-get remove -y slurm-gpumem-node", fails=True)
    assert (tree.root / "usr/libexec/slurm-gpumem/prolog.sh").exists()
    slurm_conf.unlink()

    tree.run("apt-get purge -y 'slurm-gpumem-*'")
    tree.run("apt-get autoremove --purge -y")
    assert tree.files() - files == set()
    assert tree.groups() == groups
