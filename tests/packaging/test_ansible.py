"""packaging/ansible as an admin runs it: on the hosts of a dev cluster, each in a Debian of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster, slurm_root_in_use
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from tests.packaging.test_clean_roots import DEBS, ROOT, ROOTS, Tree
from tests.site.test_setup_applies import digests, restart

PLAYBOOK = ROOT / "packaging" / "ansible" / "site.yml"
HOSTS = ("ctl", "n1", "login")
SLURM = (
    "slurm-client slurmctld slurmd slurm-wlm-basic-plugins munge lua5.1 python3 python3-apt systemd logrotate"
)

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it enters other trees"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap"),
    pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs pip install ansible-core"),
    pytest.mark.skipif(slurm_root_in_use() is not None, reason="the trees have Debian 12's Slurm"),
    pytest.mark.skipif(
        "bookworm" not in Path("/etc/os-release").read_text(), reason="Slurm's commands are Debian 12's"
    ),
]

# A connection to a host whose address is a folder; ansible-core itself has none to a chroot.
CONNECTION = '''
DOCUMENTATION = """
name: tree
short_description: a Debian in a folder
"""
import shutil, subprocess
from ansible.plugins.connection import ConnectionBase

class Connection(ConnectionBase):
    transport = "tree"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=False):
        words = ["ENTER", self._play_context.remote_addr, cmd]
        done = subprocess.run(words, input=in_data or b"", capture_output=True)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        shutil.copyfile(in_path, self._play_context.remote_addr + out_path)

    def fetch_file(self, in_path, out_path):
        shutil.copyfile(self._play_context.remote_addr + in_path, out_path)

    def close(self):
        self._connected = False
'''
# The cluster's sockets are where they are; the controller's /etc/slurm is the cluster's own.
ENTER = """#!/bin/sh
if [ "$2" = in-a-mount-namespace ]; then
    mount -t proc proc "$1/proc" && mount --bind STATE "$1/STATE" || exit
    case $1 in */ctl) mount --bind CONF "$1/etc/slurm" || exit ;; esac
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$1" /bin/sh -c "$3"
fi
exec unshare --mount "$0" "$1" in-a-mount-namespace "$2"
"""


class Site:
    """A cluster and its hosts: ctl with slurmctld's files, n1, and a login host."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster

    def play(self, *words: str, **settings: str) -> Dict[str, Dict[str, int]]:
        """Run the playbook; by host, what became of its tasks."""
        extra = [f"-e{key}={value}" for key, value in {"gpumem_packages": str(DEBS), **settings}.items()]
        env = {
            **os.environ, "ANSIBLE_CONNECTION_PLUGINS": str(self.folder), "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0", "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        command = ["ansible-playbook", "-i", str(self.folder / "hosts"), "-eansible_become=false", *extra]
        done = subprocess.run(
            [*command, *words, str(PLAYBOOK)], env=env, capture_output=True, text=True, check=False
        )
        self.said = done.stdout + done.stderr
        assert done.returncode == 0, self.said[-6000:]
        rows = re.findall(r"^(\w+) +: (ok=.*)$", self.said, re.MULTILINE)
        return {host: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", row)} for host, row in rows}

    def on(self, host: str, command: str) -> Any:
        words = [str(self.folder / "enter"), str(self.folder / host), command]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def submit(self, line: str) -> str:
        """The TresPerNode of a job with this line that the login host submits, held."""
        script = f"printf '#!/bin/sh\\n#SBATCH --gres=gpu:1\\n{line}\\nsleep 1\\n' >/tmp/job.sh"
        done = self.on("login", f"{script}; sbatch --parsable -H -o /dev/null /tmp/job.sh")
        assert done.returncode == 0, done.stderr
        words = ["squeue", "-h", "-j", done.stdout.strip(), "-O", "tres-per-node:60"]
        return str(self.cluster.run(words).stdout)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian 12 with Slurm."""
    archive = ROOTS / "bookworm.tar"
    if not archive.exists():
        ROOTS.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(ROOT / "tests/packaging/make-root.sh"), "bookworm", str(archive)], check=True)
    root = tmp_path_factory.mktemp("debian")
    root.chmod(0o755)
    subprocess.run(["tar", "-xpf", str(archive), "-C", str(root)], check=True)
    Tree(root).run(f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {SLURM}")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def site(make_cluster: Any, state_folder: Path, debian: Path) -> Site:
    assert list(DEBS.glob("*.deb")), "make test-packages builds them"
    gpus = (Undivided("a100", 4, 40960),)
    cluster = make_cluster(
        nodes=(NodeSpec("n1", gpus=0, instances=gpus),), extra_conf=("GresTypes=gpu", "ReturnToService=2")
    )
    conf = cluster.layout.conf
    cluster.layout.site_config.unlink()
    shutil.rmtree(cluster.layout.hooks)
    # Slurm takes any byte in a comment, and so must whoever copies it.
    with (conf / "slurm.conf").open("ab") as file:
        file.write(b"# 16 \xb0C\n")
    state = cluster.layout.root
    for host in HOSTS:
        subprocess.run(["cp", "-a", str(debian), str(state_folder / host)], check=True)
        (state_folder / f"{host}{state}").mkdir(parents=True)
        for name in ("slurm.conf", "gres.conf") if host != "ctl" else ():
            shutil.copy(conf / name, state_folder / host / "etc/slurm")
    (state_folder / "tree.py").write_text(CONNECTION.replace("ENTER", str(state_folder / "enter")))
    enter = ENTER.replace("/STATE", str(state)).replace("STATE", str(state)).replace("CONF", str(conf))
    (state_folder / "enter").write_text(enter)
    (state_folder / "enter").chmod(0o755)
    lines = [f"{host} ansible_connection=tree ansible_host={state_folder / host}" for host in HOSTS]
    groups = ["[gpumem_controller]", "ctl", "[gpumem_nodes]", "n1"]
    python = "ansible_python_interpreter=/usr/bin/python3"
    (state_folder / "hosts").write_text("\n".join([*(f"{line} {python}" for line in lines), *groups, ""]))
    return Site(state_folder, cluster)


class Submitter:
    """Somebody at the login host who submits all the time, within a `with` block."""

    def __init__(self, site: Site) -> None:
        self.site, self.tries, self._ended = site, 0, threading.Event()
        self.refused: List[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            done = self.site.on("login", "sbatch --test-only --gres=gpu:1 --wrap true")
            self.tries += 1
            if done.returncode:
                self.refused.append(done.stderr)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()


def of_the_site(site: Site) -> List[Dict[str, str]]:
    """Every file beside slurm.conf on every host that is not ours."""
    folders = [site.cluster.layout.conf, *(site.folder / host / "etc/slurm" for host in HOSTS[1:])]
    return [
        {name: text for name, text in digests(folder).items() if "gpumem" not in name} for folder in folders
    ]


def test_a_site_observes_and_goes_back_and_no_submission_is_refused(site: Site) -> None:
    conf, before, submitter = site.cluster.layout.conf, of_the_site(site), Submitter(site)
    # Also on hosts that have nothing of ours yet.
    site.play("--check", "--diff")
    assert of_the_site(site) == before
    with submitter:
        first = site.play()
        assert set(first) == set(HOSTS)
        assert all(row["changed"] for row in first.values())
        assert "CliFilterPlugins=lua" in (site.folder / "login/etc/slurm/slurm.conf").read_text("latin-1")
        for host in HOSTS[1:]:
            for name in ("slurm.conf", "gpumem.toml", "cli_filter.lua"):
                assert (site.folder / host / "etc/slurm" / name).read_bytes() == (conf / name).read_bytes()
        assert [row["changed"] for row in site.play().values()] == [0, 0, 0]
        site.play(gpumem_state="absent")
        assert [row["changed"] for row in site.play(gpumem_state="absent").values()] == [0, 0, 0]
    assert of_the_site(site) == before
    assert submitter.refused == []
    assert submitter.tries > 10


def test_a_site_shares_and_daemons_restart_only_where_the_admin_wants_it(site: Site) -> None:
    site.play()
    log = "/tmp/systemctl"
    for host in HOSTS:
        program = site.folder / host / "usr/bin/systemctl"
        program.unlink()
        program.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
        program.chmod(0o755)
    logs = [site.folder / host / log[1:] for host in HOSTS]
    shares = {"gpumem_setup": "'--mode opt-in --mps per-user'", "gpumem_restart": "true"}
    submitter = Submitter(site)
    with submitter:
        site.play("--check", "--diff", **shares)
        assert "+GresTypes=gpu,shard" in site.said
        site.play(**shares)
        assert [path.read_text() if path.exists() else "" for path in logs] == [
            "restart slurmctld\n", "restart slurmd\n", "",
        ]  # fmt: skip
    assert submitter.refused == []
    restart(site.cluster)
    assert "gpu" in site.submit("#GPUMEM mem=12G")
    site.play(**shares)
    assert [path.read_text().count("\n") for path in logs[:2]] == [1, 1]
    assert "shard" in site.submit("#GPUMEM mem=12G")


def test_a_host_with_a_gres_conf_of_its_own_keeps_it(site: Site) -> None:
    own = site.folder / "n1/etc/slurm/gres.conf"
    own.write_text("AutoDetect=nvml\n")
    with pytest.raises(AssertionError, match=r"gres\.conf differs from ctl's"):
        site.play()
    assert own.read_text() == "AutoDetect=nvml\n"
    assert not (site.folder / "login/usr/bin/gpumem").exists()
    # One that comes later, or is edited there, too.
    shutil.copy(site.folder / "login/etc/slurm/gres.conf", own)
    site.play()
    site.play()
    own.write_text("AutoDetect=nvml\n")
    for state in ("present", "absent"):
        with pytest.raises(AssertionError, match=r"gres\.conf differs from ctl's"):
            site.play(gpumem_state=state)
    assert own.read_text() == "AutoDetect=nvml\n"
