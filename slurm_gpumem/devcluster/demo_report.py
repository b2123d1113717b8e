"""The demo's last part: the nodes' hooks measure its jobs, and `gpumem report` shows the results."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Dict, Iterable, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.formats.job_record import BadRecordError, read_job_record
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.service import sampler_runs

_HOOKS = ("prolog.sh", "epilog.sh")
_PATIENCE_S = 20.0


def install_hooks(folder: Path, ledger: Path) -> Tuple[str, ...]:
    """Put the hooks and a site's configuration into the demo's directory; the lines for slurm.conf."""
    hooks = folder / "hooks"
    hooks.mkdir()
    for name in _HOOKS:
        shutil.copy(data_path("prolog", name), hooks)
    # Several nodes on one machine: each has its own directory, as each machine would.
    (hooks / "hooks.conf").write_text(
        f"python={sys.executable}\nsite_config={folder}/gpumem.toml\nrun_dir={folder}/run-$SLURMD_NODENAME\n"
    )
    node = {
        # Stand-in GPUs have no MPS.
        "mode": "timeslice",
        "ledger": str(ledger),
        "spool": str(folder / "records"),
        "interval_s": 0.25,
        "slurm_every_s": 1,
        "idle_exit_s": 2,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in node.items()]
    accounting = ["[accounting]", f"index = {json.dumps(str(folder / 'index'))}"]
    (folder / "gpumem.toml").write_text("\n".join(["[node]", *lines, *accounting, ""]))
    return "PrologFlags=Alloc", f"Prolog={hooks}/prolog.sh", f"Epilog={hooks}/epilog.sh"


def report_environment(folder: Path) -> Dict[str, str]:
    """The environment in which a command sees the demo's site instead of this machine's."""
    return {
        "GPUMEM_SITE_CONFIG": f"{folder}/gpumem.toml",
        "GPUMEM_INDEX": f"{folder}/index",
        "XDG_CACHE_HOME": str(folder),
    }


def report(cluster: Cluster, folder: Path, job_ids: Iterable[str]) -> str:
    """`gpumem report` of the demo's jobs, once their records are closed."""
    deadline = time.monotonic() + _PATIENCE_S
    waiting = {*job_ids}
    while waiting and time.monotonic() < deadline:
        waiting = {job_id for job_id in waiting if not _closed(folder / "records", job_id)}
        time.sleep(0.1)
    done = cluster.run(
        [str(Path(sys.executable).with_name("gpumem")), "report"],
        env={**report_environment(folder), "PYTHONIOENCODING": sys.stdout.encoding or "ascii"},
        timeout_s=_PATIENCE_S,
    )
    return (done.stdout + done.stderr).rstrip()


def await_samplers(folder: Path) -> None:
    """The nodes' samplers exit soon after the last job; then their directories can be removed."""
    deadline = time.monotonic() + _PATIENCE_S
    folders = [RunFolder(path) for path in folder.glob("run-*")]
    while any(map(sampler_runs, folders)) and time.monotonic() < deadline:
        time.sleep(0.1)


def _closed(records: Path, job_id: str) -> bool:
    for path in records.glob(f"{job_id}.*.json"):
        try:
            return read_job_record(path).end is not None
        except (OSError, BadRecordError):
            return False
    return False
