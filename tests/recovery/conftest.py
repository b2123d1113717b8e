"""A cluster with the recovery installed as a site installs it: hooks, a Python that every user may run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.node.jobs import RunFolder
from tests.node.conftest import MPS_STANDIN, REPOSITORY, kill, samplers_of
from tests.support.site_toml import site_toml
from tests.support.slurm_jobs import live_peaks, verified_peaks
from tests.support.waiting import remove_tree, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hooks run as root for other users")
CRED_EXPIRE_S = 5
LONG = bool(os.environ.get("GPUMEM_TEST_LONG"))
"""`make test-recovery` runs the long forms."""
RECORD = "gpumem/1:est=11000,req=12288,by=test,shards={shards},oom={oom}"
OOM_LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "12.00 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 10.80 GiB memory in "
    "use."
)
OOM = f"echo 'Traceback (most recent call last):' >&2; echo '{OOM_LINE}' >&2; exit 1"


def let_go(fifo: Path) -> bool:
    """Let everybody go on who waits to read it; always true, to stand in a condition."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        # Nobody waits, or nobody yet.
        if error.errno != errno.ENXIO:
            raise
    return True


def install_package(folder: Path) -> Path:
    """A Python that any user may run and that has the package: the system's, of whatever version."""
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"):
        site = folder / "lib" / f"python{version}" / "site-packages"
        site.parent.mkdir(parents=True)
        site.symlink_to(folder / "packages")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "slurm_gpumem", folder / "packages" / "slurm_gpumem", ignore=ignore)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return folder / "bin" / "python3"


@dataclass(frozen=True)
class Site:
    """A cluster with our hooks, and what tests ask of it."""

    cluster: Cluster
    root: Path

    def configure(self, **recovery: object) -> None:
        """Write gpumem.toml; hooks read it each time."""
        node = {
            "ledger": str(self.cluster.layout.ledger),
            "spool": str(self.root / "records"),
            "mps_control": str(self.root / "bin" / MPS_STANDIN.name),
            "interval_s": 0.2,
            "slurm_every_s": 1,
            "idle_exit_s": 2,
        }
        settings = {"ladder": ["whole-gpu"], **recovery}
        link = self.root / "slurm.conf"
        if not link.is_symlink():
            link.symlink_to(self.cluster.layout.slurm_conf)
        text = site_toml(node, recovery=settings, devcluster={"least_slot_s": 1})
        (self.root / "gpumem.toml").write_text(text)

    def submit(
        self,
        script: str,
        *options: str,
        shards: int = 12,
        gres: Optional[str] = None,
        oom: str = "requeue",
        comment: Optional[str] = None,
        user: str = "nobody",
        env: Optional[Mapping[str, str]] = None,
    ) -> str:
        words = comment if comment is not None else "mine " + RECORD.format(shards=shards, oom=oom)
        argv = [
            "sbatch", "--parsable", f"--gres={gres or f'shard:{shards}'}", "--mem=100", "--open-mode=append",
            f"--output={self.root}/out/%A_%a" if any(o.startswith("--array") for o in options)
            else f"--output={self.root}/out/%j",
            *([f"--comment={words}"] if words else []), *options,
        ]  # fmt: skip
        done = self.cluster.run(argv, user=user, cwd=Path("/"), input=f"#!/bin/bash\n{script}\n", env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, job: str) -> Dict[str, str]:
        """Some of the job's fields; empty when Slurm has forgotten it."""
        columns = ("State", "Reason", "RestartCnt", "tres-per-node", "PriorityLong", "Comment")
        width = ",".join(f"{name}:1100" for name in columns)
        done = self.cluster.run(["squeue", "-h", "-a", "-t", "all", "-j", job, "-O", width])
        line = done.stdout.split("\n")[0]
        cells = [line[at * 1100 : (at + 1) * 1100].strip() for at in range(len(columns))]
        return dict(zip(columns, cells)) if done.returncode == 0 and line.strip() else {}

    def out(self, job: str) -> str:
        return (self.root / "out" / job).read_text()

    def _log_of(self, job: str) -> str:
        return self.out(job) if (self.root / "out" / job).exists() else "(no log)"

    def record(self, job: str, run: int) -> Dict[str, Any]:
        """The node's record of one run."""
        until(lambda: list((self.root / "records").glob(f"{job}.{run}.*.json")))
        (path,) = (self.root / "records").glob(f"{job}.{run}.*.json")
        until(lambda: json.loads(path.read_text())["end"])
        table: Dict[str, Any] = json.loads(path.read_text())
        return table

    def runs(self, job: str) -> int:
        """How often its script has begun, by its own log: a script begins with `echo begins`."""
        try:
            return self.out(job).count("begins")
        except OSError:
            return 0

    def ended(self, job: str, state: str, timeout_s: float = 240.0) -> Dict[str, str]:
        """The job's fields once it is over in that state."""
        fields: Dict[str, str] = until(
            lambda: (shown := self.show(job)).get("State") == state and shown,
            timeout_s,
            but=lambda: f"({state}): {self.show(job)}\n{self._log_of(job)}\n{self.log()}",
        )
        return fields

    def log(self) -> str:
        """What EpilogSlurmctld did."""
        try:
            return (self.root / "recovery.log").read_text()
        except OSError:
            return ""

    def folder(self, node: str) -> RunFolder:
        """As on a real site, each node has its own: its sampler would take the other's jobs for its own."""
        return RunFolder(self.root / "run" / node)

    def peaks(self, *, verified: bool = False) -> Dict[str, Optional[float]]:
        """The memory of each job so far, on whichever node it runs."""
        look = verified_peaks if verified else live_peaks
        nodes = [folder.name for folder in (self.root / "run").iterdir()]
        return {job: peak for node in nodes for job, peak in look(self.folder(node).live).items()}


def make_site(make: Callable[..., Cluster], *extra: str, **fields: Any) -> Site:
    """The cluster, its hooks and a place for logs."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-"))
    root.chmod(0o755)
    for name in ("bin", "out"):
        (root / name).mkdir()
    (root / "out").chmod(0o1777)
    shutil.copy(MPS_STANDIN, root / "bin")
    python = install_package(root / "python")
    hooks = root / "hooks"
    shutil.copytree(REPOSITORY / "prolog", hooks)
    options: Dict[str, Any] = {
        "nodes": (NodeSpec("n1"), NodeSpec("n2")),
        "cred_expire_s": CRED_EXPIRE_S,
        **fields,
    }
    for node in options["nodes"]:
        (root / "run" / node.name).mkdir(parents=True)
        RunFolder(root / "run" / node.name).make()
    cluster = make(
        extra_conf=(
            "PrologFlags=Alloc",
            f"Prolog={hooks}/prolog.sh",
            f"Epilog={hooks}/epilog.sh",
            f"TaskProlog={hooks}/task_prolog.sh",
            f"TaskEpilog={hooks}/task_epilog.sh",
            f"EpilogSlurmctld={hooks}/epilog_slurmctld.sh",
            # Slurm forgets jobs after five minutes otherwise, and a module on a slow machine takes longer.
            "MinJobAge=3600",
            # A sampler knows a user's processes by their job: clusters of tests beside it have other numbers.
            f"FirstJobId={os.getpid() % 100_000 * 100 + 1}",
            *extra,
        ),
        **options,
    )
    (hooks / "hooks.conf").write_text(
        f"python={python}\nsite_config={root}/gpumem.toml\nrun_dir={root}/run/$SLURMD_NODENAME\n"
        f"recovery_log={root}/recovery.log\nstate_dir={cluster.layout.controller}\n"
    )
    site = Site(cluster, root)
    site.configure()
    return site


class _Hurry(threading.Thread):
    """Lets requeued jobs start once slurmd has forgotten their credential; Slurm waits a little longer."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site, self._over = site, threading.Event()
        self._seen: Dict[str, float] = {}

    def run(self) -> None:
        while not self._over.wait(0.5):
            try:
                self._look()
            except subprocess.TimeoutExpired:
                continue  # a test has stopped the controller; the jobs wait for the next look

    def _look(self) -> None:
        listed = self._site.cluster.run(["squeue", "-h", "-t", "PENDING", "-o", "%i %r"])
        rows = (line.partition(" ") for line in listed.stdout.splitlines())
        waiting = [job for job, _, reason in rows if reason == "BeginTime"]
        now = time.monotonic()
        # A job that is requeued twice waits twice.
        self._seen = {job: self._seen.get(job, now) for job in waiting}
        for job, since in self._seen.items():
            # A job that starts before cred_expire may be refused by slurmd, or run without its Prolog.
            if now - since > CRED_EXPIRE_S:
                self._site.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def hurried(site: Site) -> Iterator[Site]:
    """The site while somebody hurries its requeued jobs; stopped and removed afterwards."""
    hurry = _Hurry(site)
    hurry.start()
    try:
        yield site
    finally:
        hurry.stop()
        close_site(site)


def close_site(site: Site) -> None:
    site.cluster.stop()
    for pid in samplers_of(site.root / "run"):
        kill(pid)
    # Jobs that still ran have left the folders of their MPS daemons mounted.
    mounted = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    for folder in [path for path in mounted if path.startswith(f"{site.root}/")]:
        subprocess.run(["umount", "--lazy", folder], check=True)
    remove_tree(site.root)


@pytest.fixture(scope="module")
def module_site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    """One site for all tests of a module: starting one costs more than most of them."""
    with hurried(make_site(make_module_cluster)) as site:
        yield site
