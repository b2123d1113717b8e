"""Examine the hooks and files on this host, for `gpumem doctor`.

It runs nothing that somebody else than root could have changed.
"""

from __future__ import annotations

import glob
import os
from typing import Iterable, Iterator, Tuple

from slurm_gpumem.site.doctor.hosts import HostReport, Question
from slurm_gpumem.site.doctor.probe_host import RUN_AS_SLURM, Host
from slurm_gpumem.site.doctor.probe_node import check_node

_NODE = """
import json, sys
from slurm_gpumem.config.node import load_node_config
config = load_node_config(sys.argv[1])
names = ("spool", "mps_control", "ledger", "slurm_bin", "prometheus_file")
values = {name: getattr(config, name) for name in names}
values["driver_limit"] = "yes" if getattr(config, "driver_limit", False) else None
values["modes"] = " ".join(config.mps_anywhere())
print(json.dumps({name: None if value is None else str(value) for name, value in values.items()}))
"""


def expanded(hooks: Iterable[Tuple[str, str]]) -> Iterator[Tuple[str, str]]:
    """Each program of each hook: Slurm takes patterns, too (/etc/slurm/prolog.d/*)."""
    for key, path in hooks:
        found = sorted(glob.glob(path)) if glob.has_magic(path) else []
        yield from ((key, name) for name in found or [path])


def examine(question: Question) -> HostReport:
    """Everything about this host that was asked for."""
    host = Host(question)
    for path in question.files:
        host.is_safe(path)
    for key, path in expanded(question.hooks):
        settings = host.hook(key, path)
        if not settings:
            continue
        host.site_file(key, settings)
        if key in RUN_AS_SLURM:
            host.facts["state_dir"] = settings.get("state_dir", "")
        # Only these start Python; TaskProlog is plain shell.
        python = host.interpreter(key, settings) if settings["modules"] else None
        site_config = settings.get("site_config", "")
        if python and key == "Prolog":
            node = host.run_python(python, _NODE, site_config)
            if node is not None:
                check_node(host, python, settings, node, os.path.dirname(path))
    missing = [path for path in question.devices if host.is_there(path) is False]
    if missing:
        host.fault("no-device", f"{', '.join(missing[:4])} of gres.conf: not on this host")
    return HostReport(tuple(host.faults), tuple(sorted(set(host.unseen))), host.facts)
