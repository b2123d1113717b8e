"""Edits of slurm.conf that slurmctld has not read yet: a proposal from what runs would undo them."""

from __future__ import annotations

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.setup.slurm_conf import words_of
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf.conf_file import read_tree
from slurm_gpumem.slurm.conf.conf_nodes import attributes_of, lines_of
from slurm_gpumem.slurm.gres import parse_gres

_LISTS = ("GresTypes", "JobSubmitPlugins")


def refuse_pending_edits(now: Snapshot) -> None:
    """UsageError where slurm.conf has other GPUs, gres or plug-ins than the cluster runs with."""
    if "slurm.conf" not in now.files:
        return
    statements = read_tree("slurm.conf", now.files, now.where).statements
    for key in _LISTS:
        written = next((v for s in reversed(statements) if (v := s.value(key.lower())) is not None), "")
        known = {word.lower() for word in words_of(now.config, key)}
        new = [word for word in written.split(",") if word.strip() and word.strip().lower() not in known]
        if new and "none" not in new:
            _refuse(f"{key}={written}", f"{key}={now.config.get(key, '')}")
    lines = attributes_of(lines_of(statements, "nodename"))
    for node in now.nodes:
        about = lines.get(node["NodeName"])
        if about is not None and _gpus(about.get("gres", "")) != _gpus(node.get("Gres", "")):
            name = node["NodeName"]
            _refuse(
                f"{name} with Gres={about.get('gres') or '(none)'}",
                f"{name} with {node.get('Gres') or 'none'}",
            )


def _gpus(gres: str) -> int:
    return sum(count for name, _, count in parse_gres(gres) if name == "gpu")


def _refuse(written: str, running: str) -> None:
    raise UsageError(
        f"slurm.conf has {written}, the cluster runs with {running}.\n"
        "A proposal would undo an edit that slurmctld has not read. Put it in use first (restart slurmctld, "
        "then every slurmd), or take it back, and run gpumem setup again."
    )
