"""The nodes' hooks as files for `gpumem setup --output`: as they ship, with their settings filled in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Mapping, Optional

from slurm_gpumem.data import data_path
from slurm_gpumem.site.setup.setup_notes import HOOKS_FOLDER, chained_hooks
from slurm_gpumem.site.setup.slurm_conf import value_of

SCRIPTS = (
    "prolog.sh",
    "epilog.sh",
    "end_exports.sh",
    "hand_over.sh",
    "let_go.sh",
    "log_check.sh",
    "build_end.sh",
    "task_prolog.sh",
    "task_epilog.sh",
    "epilog_slurmctld.sh",
)
_OTHERS = ("gpumem_end.c", "gpumem-sampler.service")


def hook_files(running: Mapping[str, str]) -> Dict[str, str]:
    """By their names in the folder of hooks."""
    shipped = {name: data_path("prolog", name).read_text() for name in (*SCRIPTS, *_OTHERS)}
    settings = _settings(running)
    return shipped if settings is None else {**shipped, "hooks.conf": settings}


def _settings(running: Mapping[str, str]) -> Optional[str]:
    """hooks.conf; one that this host has already stays as it is. None where it may not be read."""
    try:
        return Path(HOOKS_FOLDER, "hooks.conf").read_text()
    except PermissionError:
        return None
    except OSError:
        pass  # none yet
    lines = ["# On the nodes, too, a Python that has slurm_gpumem:", f"python={sys.executable}"]
    state = value_of(running, "StateSaveLocation")
    lines += [f"state_dir={state}"] if state else []
    lines += [f"{key}={program}" for key, program in chained_hooks(running).items()]
    return "\n".join([data_path("prolog", "hooks.conf.example").read_text().rstrip(), *lines, ""])
