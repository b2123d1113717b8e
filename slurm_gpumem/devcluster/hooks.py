"""The nodes' hooks in a dev cluster: they measure jobs on stand-in GPUs, so that reports have figures."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Dict, List, Mapping

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.processes import Process
from slurm_gpumem.devcluster.spec import Layout
from slurm_gpumem.node.processes import all_pids

_HOOKS = {"Prolog": "prolog.sh", "Epilog": "epilog.sh", "TaskProlog": "task_prolog.sh"}
_RECOVERY = {"TaskEpilog": "task_epilog.sh", "EpilogSlurmctld": "epilog_slurmctld.sh"}
_SAMPLER = b"slurm_gpumem.node.sampler"


def install(layout: Layout, *, whole: bool) -> None:
    """Write the hooks' settings into the cluster's directory, where it runs them also the hooks."""
    for path in data_path("prolog", "prolog.sh").parent.glob("*.sh") if whole else ():
        shutil.copy(path, layout.hooks)
    # Several nodes on one machine: each has its own directory, as each machine would.
    (layout.hooks / "hooks.conf").write_text(
        f"python={sys.executable}\nsite_config={layout.site_config}\n"
        f"run_dir={layout.nodes}/$SLURMD_NODENAME\nstate_dir={layout.controller}\n"
        f"recovery_log={layout.log}/recovery.log\n"
    )


def hook_settings(layout: Layout) -> Dict[str, str]:
    """The lines of slurm.conf that run them."""
    return {"PrologFlags": "Alloc", **{key: str(layout.hooks / name) for key, name in _HOOKS.items()}}


def recovery_settings(hooks: Path) -> Dict[str, str]:
    """The lines of slurm.conf by which jobs are run again after out of memory."""
    return {key: str(hooks / name) for key, name in _RECOVERY.items()}


def site_tables(layout: Layout) -> List[str]:
    """The lines of gpumem.toml that they need."""
    # Stand-in GPUs have no MPS.
    node = {"mps": "timeslice", "spool": str(layout.records)}
    constants = {
        "ledger": str(layout.ledger),
        "index": str(layout.index),
        "interval_s": 0.25,
        "activity_every_s": 1,
        "record_every_s": 2,
        "slurm_every_s": 1,
        "pilot_steady_s": 4,
        "idle_exit_s": 2,
    }
    return ["", *toml_lines("node", node), "", *toml_lines("devcluster", constants)]


def toml_lines(name: str, table: Mapping[str, object]) -> List[str]:
    """A table as it stands in a gpumem.toml."""
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def samplers(layout: Layout) -> List[Process]:
    """The samplers of this cluster's nodes; on a real node they end by themselves, without a cluster not."""
    ours = b"GPUMEM_RUN_DIR=" + os.fsencode(layout.nodes) + b"/"
    found = []
    for pid in all_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if _SAMPLER in words else []
        except OSError:
            continue  # gone by now, or another user's
        if any(variable.startswith(ours) for variable in variables):
            found.append(processes.identify(pid))
    return [process for process in found if process is not None]
