"""The running controller's configuration: `scontrol show config`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, NamedTuple, Optional

from slurm_gpumem.slurm.client import SlurmClient, Version, parse_version

_KEY = re.compile(r"[A-Za-z_]+(\[[0-9]+\])?")


class Site(NamedTuple):
    """What recovery must know of the cluster."""

    version: Version
    requeues: bool
    """JobRequeue: whether jobs may be requeued unless they say otherwise."""
    state: Optional[Path]
    """StateSaveLocation, where only SlurmUser may write."""
    limits: bool = False
    """Whether limits of associations and QOS are enforced."""
    weighs: bool = False
    """Whether priorities are weighed sums (priority/multifactor), not places in a queue."""


def show_config(client: SlurmClient) -> Dict[str, str]:
    """All settings of the running controller."""
    return parse_config(client.run(["scontrol", "show", "config"], timeout_s=5.0))


def parse_config(text: str) -> Dict[str, str]:
    """The settings of `scontrol show config`; numbered ones (Prolog[0]) also without number."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        key = key.strip()
        if equals and _KEY.fullmatch(key):
            found[key] = value.strip()
            found.setdefault(key.partition("[")[0], value.strip())
    return found


def kill_wait_s(client: SlurmClient) -> float:
    """How long Slurm waits between SIGTERM and SIGKILL."""
    match = re.match(r"[0-9]+", show_config(client).get("KillWait", ""))
    return float(match[0]) if match else 30.0


def version_of(config: Dict[str, str]) -> Version:
    """The controller's version; SlurmError when it does not say."""
    return parse_version(config.get("SLURM_VERSION", ""))


def ask_site(client: SlurmClient) -> Site:
    """Version and settings of the running controller."""
    config = show_config(client)
    state = config.get("StateSaveLocation", "")
    return Site(
        version_of(config),
        config.get("JobRequeue", "1") != "0",
        Path(state) if os.path.isabs(state) else None,
        "limits" in config.get("AccountingStorageEnforce", ""),
        "multifactor" in config.get("PriorityType", ""),
    )
