"""A site as an administrator would have it: a cluster with all our parts installed, and nothing wrong."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from slurm_gpumem.data import FILTER_FILES
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.node.jobs import RunFolder
from tests.node.conftest import MPS_STANDIN, REPOSITORY
from tests.recovery.conftest import install_package
from tests.support.end_library import build_end_library
from tests.support.slurm_daemons import stop_restarted
from tests.support.waiting import remove_tree, until

GPUMEM = str(Path(sys.executable).with_name("gpumem"))
Saved = Dict[Path, Tuple[int, int, int, Optional[bytes]]]


@dataclass(frozen=True)
class WholeSite:
    """The cluster, the folder of our files, and how everything was when it was whole."""

    cluster: Cluster
    root: Path
    saved: Saved = field(default_factory=dict)

    @property
    def hooks(self) -> Path:
        return self.root / "hooks"

    @property
    def hooks_conf(self) -> Path:
        return self.hooks / "hooks.conf"

    @property
    def toml(self) -> Path:
        return self.cluster.layout.site_config

    @property
    def conf(self) -> Path:
        return self.cluster.layout.conf

    @property
    def package(self) -> Path:
        return self.root / "python" / "packages" / "slurm_gpumem"

    @property
    def spool(self) -> Path:
        return self.root / "records"

    def doctor(self, *args: str) -> Dict[str, Any]:
        """The doctor's answer; without what it says about every site of that version."""
        ignored = [word for check in ("mixed-jobs", "placement") for word in ("--ignore", check)]
        done = self.cluster.run([GPUMEM, "doctor", "--json", *ignored, *args], timeout_s=120)
        assert done.stdout, done.stderr
        answer: Dict[str, Any] = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode
        return answer

    def reconfigure(self, old: str, new: str) -> None:
        """Change slurm.conf and let the daemons read it."""
        path = self.cluster.layout.slurm_conf
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.cluster.run(["scontrol", "reconfigure"], check=True)

    def set(self, table: str, key: str, value: object) -> None:
        """One more line in a table of gpumem.toml; replaces one that is there."""
        lines = [line for line in self.toml.read_text().splitlines() if not line.startswith(f"{key} =")]
        if f"[{table}]" not in lines:
            lines += [f"[{table}]"]
        at = lines.index(f"[{table}]") + 1
        self.toml.write_text("\n".join([*lines[:at], f"{key} = {json.dumps(value)}", *lines[at:], ""]))

    def run_job(self) -> None:
        self.cluster.run(["srun", "--mem=64", "true"], check=True)

    def save(self) -> None:
        """Remember how everything is."""
        for path in self._watched():
            about = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
            self.saved[path] = (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid, content)

    def reset(self) -> None:
        """Everything as it was."""
        again = False
        for path in self._watched():
            if path not in self.saved:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path, (mode, uid, gid, content) in self.saved.items():
            if content is not None and (not path.exists() or path.read_bytes() != content):
                path.write_bytes(content)
                again = again or path == self.cluster.layout.slurm_conf
            if not path.is_symlink():
                os.chown(path, uid, gid)
                path.chmod(mode)
        if again:
            self.cluster.run(["scontrol", "reconfigure"], check=True)
        self.cluster.run(["scontrol", "update", "NodeName=ALL", "State=RESUME"])
        # A resumed node does not respond until it was asked.
        until(lambda: set(self._node_states()) == {"idle"})

    def _node_states(self) -> List[str]:
        return self.cluster.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()

    def _watched(self) -> List[Path]:
        folders = [self.hooks, self.conf, self.root / "bin", self.root / "run" / "jobs", self.package]
        inside = [path for folder in folders for path in [folder, *sorted(folder.iterdir())]]
        return [self.root, *(path for path in inside if path.name != "__pycache__")]


def make_whole_site(
    make: Callable[..., Cluster], *extra: str, without: Tuple[str, ...] = (), **fields: Any
) -> WholeSite:
    """Start a cluster with hooks, plug-in and settings of ours as the documents say, but some settings."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-"))
    root.chmod(0o755)
    (root / "bin").mkdir()
    shutil.copy(MPS_STANDIN, root / "bin")
    python = install_package(root / "python")
    hooks = root / "hooks"
    shutil.copytree(REPOSITORY / "prolog", hooks)
    build_end_library(hooks)
    RunFolder(root / "run").make()
    lines = [
        "PrologFlags=Alloc",
        "PrologEpilogTimeout=60",
        f"Prolog={hooks}/prolog.sh",
        f"Epilog={hooks}/epilog.sh",
        f"TaskProlog={hooks}/task_prolog.sh",
        f"TaskEpilog={hooks}/task_epilog.sh",
        f"EpilogSlurmctld={hooks}/epilog_slurmctld.sh",
        # Without slurmdbd, age counts nowhere: the default of newer versions needs it.
        "PriorityType=priority/basic",
        "SchedulerParameters=batch_sched_delay=0,bf_interval=5,bf_window=2940,bf_min_prio_reserve=595",
    ]
    replaced = {line.split("=")[0] for line in extra} | set(without)
    options = {
        "nodes": default_nodes(2),
        "job_submit_lua": str(REPOSITORY / "lua" / "job_submit.lua"),
        "extra_conf": (*(line for line in lines if line.split("=")[0] not in replaced), *extra),
        **fields,
    }
    try:
        cluster = make(**options)
    except BaseException:
        remove_tree(root)
        raise
    site = WholeSite(cluster, root)
    for name in FILTER_FILES:
        (site.conf / name).unlink(
            missing_ok=True
        )  # it came with job_submit.lua; the filter is not in use here
    (hooks / "hooks.conf").write_text(
        f"python={python}\nsite_config={site.toml}\nrun_dir={root}/run\n"
        f"recovery_log={root}/recovery.log\nstate_dir={cluster.layout.controller}\n"
    )
    for table, key, value in (
        ("devcluster", "ledger", cluster.layout.ledger),
        ("devcluster", "mps_control", root / "bin" / MPS_STANDIN.name),
        ("node", "spool", site.spool),
    ):
        site.set(table, key, str(value))
    site.set("node", "mps", "per-user")
    site.set("sharing", "max_slowdown", 2.0)
    written = cluster.run([GPUMEM, "setup", "--output", str(root / "setup")])
    assert written.returncode == 0, written.stderr
    shutil.copy(root / "setup" / "gpumem_site.lua", site.conf / "gpumem_site.lua")
    site.save()
    site.run_job()
    return site


def close_whole_site(site: WholeSite) -> None:
    """Remove what the cluster's own end does not."""
    stop_restarted(site.cluster)
    site.cluster.stop()
    remove_tree(site.root)
