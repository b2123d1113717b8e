"""Complete a cluster's picture by looking at this host, and at the hooks' signs on it."""

from __future__ import annotations

import glob
import os
import pwd
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.config.read import read_file
from slurm_gpumem.config.schema import ACCOUNTING, SECTIONS
from slurm_gpumem.data import FILTER_FILES, HOOKS_CONF, hooks_conf
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.site.doctor.check_hooks import LUA_PLUGIN, NODE_HOOKS
from slurm_gpumem.site.doctor.check_nodes import parse_gres_conf
from slurm_gpumem.site.doctor.hosts import HostReport, Question
from slurm_gpumem.site.doctor.probe_host import RUN_AS_SLURM, Host, is_hidden
from slurm_gpumem.site.doctor.probe_node import check_node
from slurm_gpumem.site.setup.slurm_conf import RECOVERY_HOOK, value_of
from slurm_gpumem.site.snapshot import FILES, Heartbeat, Snapshot
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.queue import newest_end

# Examine the hooks and files on this host, for `gpumem doctor`.
#
# It runs nothing that somebody else than root could have changed.


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
    if question.filter_python is not None:
        host.filter_python(question.filter_python, question.filter_conf)
    missing = [path for path in question.devices if host.is_there(path) is False]
    if missing:
        host.fault("no-device", f"{', '.join(missing[:4])} of gres.conf: not on this host")
    return HostReport(tuple(host.faults), tuple(sorted(set(host.unseen))), host.facts)


CONTROLLER_HOOKS = ("EpilogSlurmctld", "PrologSlurmctld")
HEARTBEAT = "gpumem-epilog-slurmctld"
"""The file that prolog/epilog_slurmctld.sh touches in its state_dir."""
_PATIENCE_S = 5.0
"""How long after a job's end its EpilogSlurmctld may still be on its way."""
_POLL_S = 0.1


def look_here(now: Snapshot, client: Commands) -> Snapshot:
    """The picture with what this host says."""
    host = os.uname().nodename.partition(".")[0]
    controllers = {_short(value) for key, value in now.config.items() if key.startswith("SlurmctldHost")}
    is_controller = host in controllers
    nodes_here = [n["NodeName"] for n in now.shared_nodes() if _short(n.get("NodeHostName", "")) == host]
    gres = parse_gres_conf(now.files.get("gres.conf", ""))
    there = tuple(
        pair for pair in _hooks(now, NODE_HOOKS) if nodes_here or is_hidden(pair[1]) or glob.glob(pair[1])
    )
    unseen = tuple(f"{key}={path}" for key, path in _hooks(now, NODE_HOOKS) if (key, path) not in there)
    mine = (*(_hooks(now, CONTROLLER_HOOKS) if is_controller else ()), *there)
    devices = [path for name in nodes_here for path in gres.devices(name)]
    now = replace(now, is_controller=is_controller, hooks_unseen=unseen)
    try:
        here = examine(_question(now, mine, _files(now, is_controller), devices))
    except (OSError, ValueError) as error:
        return replace(now, unread=(*now.unread, f"this host: {error}"))
    here = replace(here, nodes=tuple(nodes_here))
    now = replace(now, here=here)
    theirs = str(here.facts.get("site_config", ""))
    if theirs and not (now.site_file and os.path.exists(theirs) and os.path.samefile(theirs, now.site_file)):
        now = replace(now, problems=(*now.problems, *read_file(theirs, SECTIONS).problems))
    if not is_controller:
        return now
    try:
        return replace(now, heartbeat=_heartbeat(now, here, client))
    except (OSError, SlurmError) as error:
        return replace(now, unread=(*now.unread, f"EpilogSlurmctld's sign of life: {error}"))


def _question(
    now: Snapshot, hooks: Tuple[Tuple[str, str], ...], files: Sequence[str] = (), devices: Sequence[str] = ()
) -> Question:
    users = {uid for key in ("SlurmUser", "SlurmdUser") for uid in [_uid(now, key)] if uid is not None}
    groups = {pwd.getpwuid(uid).pw_gid for uid in users if _is_known(uid)}
    return Question(
        hooks=hooks,
        files=tuple(files),
        devices=tuple(devices),
        trusted_uids=tuple(sorted({0, *users})),
        trusted_gids=tuple(sorted({0, *groups})),
        slurm_uid=_uid(now, "SlurmUser"),
        filter_conf=hooks_conf(now.folder) if now.folder else "",
        filter_python=_filter_python(now),
    )


def _hooks(now: Snapshot, keys: Sequence[str]) -> Tuple[Tuple[str, str], ...]:
    """Each program or pattern that slurm.conf names; newer versions number them (Prolog[0])."""
    found: List[Tuple[str, str]] = []
    for key in keys:
        numbered = [name for name in now.config if re.fullmatch(rf"{key}\[[0-9]+\]", name)] or [key]
        for name in numbered:
            path = value_of(now.config, name)
            if path and os.path.isabs(path):
                found.append((key, path))
    return tuple(found)


def _files(now: Snapshot, is_controller: bool) -> List[str]:
    """Files that slurmctld, root or every user's sbatch reads and that users must not be able to change."""
    if now.folder is None:
        return []
    beside = [*(now.folder / name for name in FILTER_FILES), Path(hooks_conf(now.folder))]
    filters = beside if "lua" in now.cli_filters else []
    if not is_controller:
        return [str(path) for path in filters if path.exists()]
    paths = [now.folder / name for name in FILES]
    paths += [Path(now.site_file)] if now.site_file else []
    books = now.tables.get(ACCOUNTING.name, {})
    paths += [books["dir"]] if "dir" in books else []
    plugins = value_of(now.config, "PluginDir") or ""
    paths += [Path(folder) / LUA_PLUGIN for folder in plugins.split(":") if folder]
    return [str(path) for path in dict.fromkeys(paths) if path.exists()]


def _filter_python(now: Snapshot) -> Optional[str]:
    """What plain sbatch starts here, read as lua/gpumem_filter.lua does; None where it starts nothing."""
    if "lua" not in now.cli_filters or FILTER_FILES[1] not in now.files:
        return None
    named = re.findall(r"^\s*python=([^\s;]*)", now.files.get(HOOKS_CONF, ""), re.MULTILINE)
    return str(named[-1]).strip("\"'") if named else "/usr/bin/python3"


def _heartbeat(now: Snapshot, here: HostReport, client: Commands) -> Optional[Heartbeat]:
    hook = value_of(now.config, "EpilogSlurmctld") or ""
    if not hook.endswith(RECOVERY_HOOK) or "state_dir" not in here.facts:
        return None
    folder = str(here.facts["state_dir"])
    if not folder:
        return Heartbeat(configured=False)
    due = newest_end(client)
    path = os.path.join(folder, HEARTBEAT)
    ran = _touched(path)
    # Slurm shows whole seconds, and a hook starts when its job has ended.
    while due and (ran is None or ran < due.at) and time.time() < due.at + _PATIENCE_S:
        time.sleep(_POLL_S)
        ran = _touched(path)
    started = value_of(now.config, "BOOT_TIME") or ""
    if due is None and ran is not None and started.isdigit() and ran < float(started):
        # Of an earlier slurmctld: nothing has shown that this one runs it.
        ran = None
    return Heartbeat(ran, due)


def _touched(path: str) -> Optional[float]:
    try:
        return os.lstat(path).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def _uid(now: Snapshot, key: str) -> Optional[int]:
    """The number of "slurm(64030)"."""
    match = re.search(r"\(([0-9]+)\)$", now.config.get(key, ""))
    return int(match[1]) if match else None


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _short(host: str) -> str:
    return host.partition("(")[0].partition(".")[0]
