"""One dev cluster with our hooks and the stand-in for MPS: what hooks and sampler do in a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.node import jobs
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.mps.daemons import MpsService, remove_home
from tests.node.conftest import MPS_STANDIN, REPOSITORY, left_of_daemons, samplers_of, take_haste_away
from tests.support.end_library import build_end_library
from tests.support.site_toml import site_toml
from tests.support.slurm_jobs import submit
from tests.support.waiting import remove_tree, until

USERS = ("nobody", "daemon")


@dataclass(frozen=True)
class Site:
    """A cluster of one node with our hooks."""

    cluster: Cluster
    root: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.root / "run")

    @property
    def mps(self) -> MpsService:
        return MpsService(self.folder, str(self.root / "bin" / MPS_STANDIN.name))

    def submit(
        self,
        command: str,
        *,
        shards: int = 8,
        user: str = USERS[0],
        comment: str = "gpumem/1:est=7000,req=8192",
        options: Sequence[str] = (),
    ) -> int:
        options = [*options, f"--gres=shard:{shards}", *([f"--comment={comment}"] if comment else [])]
        return int(submit(self.cluster, *options, command=command, output=f"{self.root}/out/%j", user=user))

    def out(self, job_id: int) -> str:
        return (self.root / "out" / str(job_id)).read_text()

    def mails(self, about: str) -> List[List[str]]:
        """Lines of the mails with that in their subject: who sent it, its arguments, its text."""
        found = [path.read_text().splitlines() for path in (self.root / "out").glob("mail.*")]
        return [lines for lines in found if len(lines) > 3 and about in lines[2]]

    def queue(self) -> List[str]:
        return self.cluster.run(["squeue", "-h", "-o", "%i %T"], check=True).stdout.splitlines()

    def node_state(self) -> str:
        return self.cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"], check=True).stdout.strip()

    def record(self, job_id: int) -> Dict[str, Any]:
        """Of a job that is over: the spool has it a moment after its epilog."""
        path = self.root / "records" / f"{job_id}.0.n1.json"
        until(lambda: path.exists() and json.loads(path.read_text())["end"] is not None)
        table: Dict[str, Any] = json.loads(path.read_text())
        return table

    def live(self, job_id: int) -> Dict[str, Any]:
        try:
            table: Dict[str, Any] = json.loads(self.folder.live.read_text())["jobs"].get(str(job_id), {})
        except (OSError, ValueError):
            return {}
        return table

    def samplers(self) -> List[int]:
        return samplers_of(self.folder.root)

    def as_seen_on_the_node(self, path: Path) -> Path:
        """A tree's Slurm has mounts of its own, and so has what its hooks start."""
        return Path(f"/proc/{self.samplers()[0]}/root{path}")

    def assert_clean(self) -> None:
        assert self.mps.daemons() == []
        assert jobs.all_jobs(self.folder) == ()
        assert left_of_daemons(self.folder) == []
        until(lambda: self.node_state() == "idle")


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    """One cluster for all tests here: starting one costs more than most of them."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-"))
    root.chmod(0o755)
    for name in ("bin", "out"):
        (root / name).mkdir()
    (root / "out").chmod(0o1777)
    shutil.copy(MPS_STANDIN, root / "bin")
    program = (
        f"#!/bin/sh\ncd {root}/out\n"
        '(id -un; echo "$#"; echo "$2"; echo "$3"; cat) >new.$$ && mv new.$$ mail.$$\n'
    )
    (root / "bin" / "mail").write_text(program)
    (root / "bin" / "mail").chmod(0o755)
    (root / "mail").mkdir()
    shutil.copy(REPOSITORY / "prolog" / "mail.sh", root / "mail")
    (root / "mail" / "hooks.conf").write_text(
        f"python={sys.executable}\nsite_config={root}/gpumem.toml\nnext_mail={root}/bin/mail\n"
    )
    hooks = root / "hooks"
    shutil.copytree(REPOSITORY / "prolog", hooks)
    (hooks / "hooks.conf").write_text(
        f"python={sys.executable}\nsite_config={root}/gpumem.toml\nrun_dir={root}/run\n"
    )
    take_haste_away(hooks)
    build_end_library(hooks)
    RunFolder(root / "run").make()
    cluster = make_module_cluster(
        nodes=(NodeSpec("n1"),),
        extra_conf=(
            "PrologFlags=Alloc",
            f"Prolog={hooks}/prolog.sh",
            f"Epilog={hooks}/epilog.sh",
            f"TaskProlog={hooks}/task_prolog.sh",
            f"TaskEpilog={hooks}/task_epilog.sh",
            "KillWait=8",
            f"MailProg={root}/mail/mail.sh",
        ),
    )
    yield Site(cluster, root)
    cluster.stop()
    for home in (root / "run" / "mps").glob("*/*"):
        remove_home(home)
    remove_tree(root)


@pytest.fixture
def make_site(site: Site) -> Iterator[Callable[..., Site]]:
    """The cluster with the test's own settings, and no sampler of an earlier test that has others."""

    def make(**settings: object) -> Site:
        values = {
            "ledger": str(site.cluster.layout.ledger),
            "spool": str(site.root / "records"),
            "interval_s": 0.2,
            "mps_control": str(site.root / "bin" / MPS_STANDIN.name),
            "slurm_every_s": 1,
            "idle_exit_s": 3,
            "grace_s": 0.1,
            **settings,
        }
        (site.root / "gpumem.toml").write_text(site_toml(values))
        return site

    yield make
    site.cluster.run(["scancel", "-p", "gpu"], check=True)
    until(lambda: not site.queue())
    for sampler in site.samplers():
        os.kill(sampler, signal.SIGTERM)
    until(lambda: not site.samplers())
