"""Checks of what runs around a job: the job_submit plug-in, its site table, prologs and their limits."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, Iterator, Set, Tuple

from slurm_gpumem.config.node import node_config_from
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.data import LUA_FILES
from slurm_gpumem.site.doctor.findings import Finding, Severity, critical, note, warning
from slurm_gpumem.site.nodes import divided_gpus
from slurm_gpumem.site.setup.plan import SLASH_SEPARATOR
from slurm_gpumem.site.setup.slurm_conf import PROLOG_TIMEOUT_S, value_of, words_of
from slurm_gpumem.site.snapshot import Snapshot

LUA_PLUGIN, FILTER_PLUGIN = "job_submit_lua.so", "cli_filter_lua.so"
NODE_HOOKS = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog")
_HOOKS_NEED_S = 20
"""A hook's Python may take 15 s, and 2 more until it is killed."""
_REFRESH = "gpumem setup --apply"


def plugin_is_in_use(now: Snapshot) -> Iterator[Finding]:
    """JobSubmitPlugins=lua, and a job_submit.lua that calls gpumem.lua."""
    if "lua" not in words_of(now.config, "JobSubmitPlugins"):
        yield warning(
            "plugin-off",
            f"JobSubmitPlugins={value_of(now.config, 'JobSubmitPlugins') or '(unset)'}",
            "requests are not capped, and #GPUMEM mem= in a plain sbatch script does nothing",
            "JobSubmitPlugins=lua in slurm.conf, then restart slurmctld (gpumem setup)",
        )
    elif "job_submit.lua" not in now.files and now.is_controller and now.folder is not None:
        yield critical(
            "lua-missing",
            f"{now.folder}/job_submit.lua is not there",
            "slurmctld will not start again",
            "gpumem setup --apply writes it",
        )
    elif "job_submit.lua" not in now.files:
        yield note(
            "plugin-unseen",
            "job_submit.lua cannot be read here",
            "whether it calls gpumem.lua is not known",
            "run gpumem doctor on the controller's host",
        )
    elif "gpumem" not in now.files["job_submit.lua"]:
        yield warning(
            "plugin-off",
            "job_submit.lua does not call gpumem.lua",
            "requests are not capped, and #GPUMEM mem= in a plain sbatch script does nothing",
            "put the marked lines in (gpumem setup shows them)",
        )


def lua_files_are_there(now: Snapshot) -> Iterator[Finding]:
    """The plug-in is several files; without one of them, jobs pass unchanged."""
    if "lua" not in words_of(now.config, "JobSubmitPlugins"):
        return
    plugins = value_of(now.config, "PluginDir") or ""
    folders = [folder for folder in plugins.split(":") if os.path.isdir(folder)]
    there = any(os.path.exists(os.path.join(folder, LUA_PLUGIN)) for folder in folders)
    if now.is_controller and folders and not there:
        yield critical(
            "lua-missing",
            f"{plugins} has no {LUA_PLUGIN}",
            "slurmctld will not start again",
            "install Slurm's Lua plug-in, or take lua out of JobSubmitPlugins",
        )
    if "gpumem" not in now.files.get("job_submit.lua", "") or now.folder is None:
        return
    missing = [name for name in (*LUA_FILES, "gpumem_site.lua") if name not in now.files]
    if missing:
        yield critical(
            "lua-missing",
            f"{', '.join(missing)} cannot be read in {now.folder}",
            "the plug-in does not work, and jobs pass unchanged",
            "gpumem setup --apply",
        )


def lua_loads(now: Snapshot) -> Iterator[Finding]:
    """A job_submit.lua that does not load stops slurmctld at its next start."""
    if "lua" not in words_of(now.config, "JobSubmitPlugins") or "job_submit.lua" not in now.files:
        return
    if now.lua is None:
        yield note(
            "lua-untried",
            "no Lua interpreter here",
            "whether job_submit.lua loads was not tried",
            "install lua5.1",
        )
        return
    for name, why in now.lua.broken:
        fatal = name == "job_submit.lua"
        if not fatal and ("gpumem" not in now.files["job_submit.lua"] or name not in now.files):
            # A file that is missing has its own finding.
            continue
        yield Finding(
            Severity.CRITICAL if fatal else Severity.WARNING,
            "lua-broken",
            f"{name} does not load: {why}",
            "slurmctld will not start again" if fatal else "jobs pass unchanged",
            "fix the file" if fatal else "gpumem setup --apply",
        )


def site_table_matches(now: Snapshot) -> Iterator[Finding]:
    """gpumem_site.lua must say what the cluster is now."""
    if now.lua is None or not now.lua.site:
        return
    table, gres = now.lua.partitions, now.lua.site.get("gres", "")
    cluster = _shares_by_partition(now, gres)
    if not any(cluster.values()):
        yield _stale(f"it divides GPUs by {gres}, the cluster does not")
        return
    for name in sorted(cluster):
        stated = set(table.get(name, table.get("*", ())))
        if name not in table and "*" not in table:
            yield _stale(f"it does not know partition {name}")
        elif stated != cluster[name]:
            yield _stale(f"partition {name} has {_shares(cluster[name])}, it says {_shares(stated)}")
    separator = "/" if now.version >= SLASH_SEPARATOR else ":"
    said_separator = now.lua.site.get("separator")
    if said_separator not in (separator, "nil"):
        yield _stale(f"its separator is {said_separator!r}, Slurm {now.version_text} has {separator!r}")


def site_files_agree(now: Snapshot) -> Iterator[Finding]:
    """The plug-in must have the mode that gpusbatch reads of gpumem.toml, and its table the same shares."""
    if now.lua is None or not now.lua.site:
        return
    stated = {key: now.policy.get(key, SHARING.default(key)) for key in ("mode", "gres", "shard_mib")}
    modes = partition_modes(now)
    for key, toml in {**stated, **modes}.items():
        lua = now.lua.site.get(key, "none" if key in modes else None)
        if lua is not None and str(toml) != lua:
            given = key in now.policy or key in modes
            where = "in gpumem.toml" if given else "by default, as gpumem.toml does not say,"
            yield warning(
                "site-files-differ",
                f"{key} is {toml!r} {where} and {lua!r} for the plug-in",
                "gpusbatch and the plug-in treat the same job differently",
                'gpumem.toml beside job_submit.lua, with mode = "..." on a line of its own below [sharing]'
                if key.startswith("mode")
                else _REFRESH,
            )


def partition_modes(now: Snapshot) -> Dict[str, str]:
    """The modes of [sharing.partition.NAME], as "mode of NAME"."""
    tables = now.policy.get("partition", {})
    return {f"mode of {name}": table["mode"] for name, table in tables.items() if "mode" in table}


def prolog_runs_at_allocation(now: Snapshot) -> Iterator[Finding]:
    """Without PrologFlags=Alloc a Prolog runs only before the first step."""
    own = [f"{key}={path}" for key in ("Prolog", "Epilog") for path in [value_of(now.config, key)] if path]
    unknown = now.hooks_unseen or (now.here and any(check == "may-not-look" for check, _ in now.here.faults))
    if not unknown and not _are_ours(now, ("Prolog", "Epilog")):
        yield note(
            "no-prolog",
            f"{' and '.join(own)}: no hook of gpumem" if own else "no Prolog and no Epilog",
            "a job's GPU memory is neither measured nor limited to its share",
            "install the hooks, if the site wants that; next_prolog= and next_epilog= in hooks.conf run the "
            "site's own after them"
            if own
            else "install the hooks, if the site wants that",
        )
    if not own:
        return
    flags = {word.lower() for word in words_of(now.config, "PrologFlags")}
    if not flags & {"alloc", "contain"}:
        yield warning(
            "prolog-flags",
            f"PrologFlags={value_of(now.config, 'PrologFlags') or '(unset)'}",
            "the Prolog runs only before a job's first step, and not on all its nodes",
            "PrologFlags=Alloc in slurm.conf",
        )
    limits = [value_of(now.config, key) for key in ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")]
    short = [limit for limit in limits if limit and re.fullmatch(r"[0-9]{1,2}( sec)?", limit)]
    short = [limit for limit in short if int(limit.split()[0]) < _HOOKS_NEED_S]
    if short:
        yield warning(
            "prolog-timeout",
            f"a Prolog or Epilog is killed after {short[0].split()[0]} s",
            f"ours may take {_HOOKS_NEED_S} s on a busy node, and a killed Prolog drains its node",
            f"PrologEpilogTimeout={PROLOG_TIMEOUT_S} in slurm.conf",
        )
    elif all(limit in (None, "65534", "65534 sec", "INFINITE", "UNLIMITED") for limit in limits):
        yield warning(
            "prolog-timeout",
            "no PrologEpilogTimeout",
            "a Prolog or Epilog that hangs holds its node forever",
            "PrologEpilogTimeout=60 in slurm.conf",
        )


def hooks_are_complete(now: Snapshot) -> Iterator[Finding]:
    """Prolog, TaskProlog and Epilog belong together."""
    if not _are_ours(now, ("Prolog", "TaskProlog")):
        return
    if node_config_from(now.tables, "").mps_anywhere() == {"off"}:
        return
    effects = {
        "Prolog": (Severity.CRITICAL, "no MPS is started, and no job is limited or measured"),
        "TaskProlog": (Severity.CRITICAL, "no job is connected to MPS: none is limited to its share"),
        "Epilog": (Severity.WARNING, "records stay open and MPS daemons stay behind"),
    }
    for key, (severity, why) in effects.items():
        if value_of(now.config, key) is None:
            yield Finding(
                severity,
                "hook-unset",
                f"slurm.conf has no {key}, but other gpumem hooks",
                why,
                f"{key}=.../{_file_of(key)} in slurm.conf (gpumem docs node)",
            )


def driver_limit_is_untried(now: Snapshot) -> Iterator[Finding]:
    """What was never run on hardware is said to be so, wherever a site turns it on."""
    if node_config_from(now.tables, "").driver_limit:
        yield note(
            "driver-limit",
            "[node] driver_limit is on: the driver limits the GPU memory of each job's cgroup",
            "it was built from NVIDIA's documentation and never run on hardware",
            "try it on one node first (gpumem docs sharing-modes says what to look at)",
        )


def way_of_sharing_is_chosen(now: Snapshot) -> Iterator[Finding]:
    """A site from before `gpumem setup` wrote these two keys hears of them until it has written them."""
    defaults = {
        "node.mps": "an MPS server for each user (new sites get one for all, where jobs of different users "
        "overlap)",
        "sharing.max_slowdown": "a limit of 2",
    }
    tables = {key: now.tables.get(key.partition(".")[0], {}) for key in defaults}
    unset = [key for key, table in tables.items() if key.partition(".")[2] not in table]
    if now.site_file and unset:
        yield note(
            "sharing-unchosen",
            f"gpumem.toml does not set {' and '.join(unset)}",
            f"the default is {' and '.join(defaults[key] for key in unset)}",
            "write that, or another value: gpumem docs sharing-modes",
        )


def site_file_is_right(now: Snapshot) -> Iterator[Finding]:
    """A value of gpumem.toml that is none stops gpusbatch, and hooks use the default."""
    for problem in now.problems:
        yield Finding(
            Severity.WARNING if problem.unknown else Severity.CRITICAL,
            "site-file",
            problem.text,
            "gpusbatch stops at a wrong value and ignores an unknown key; hooks use the default",
            "remove them (gpumem.toml(5) has all settings)" if problem.old else "correct gpumem.toml",
        )


def everything_was_asked(now: Snapshot) -> Iterator[Finding]:
    """What could not be read is reported, not skipped."""
    for text in (*now.unread, *(now.here.unseen if now.here else ())):
        yield note(
            "not-asked",
            text,
            "what depends on it was not checked",
            "run it as root on the controller's host",
        )


def _shares_by_partition(now: Snapshot, gres: str) -> Dict[str, Set[Tuple[str, int]]]:
    found: Dict[str, Set[Tuple[str, int]]] = {part["PartitionName"]: set() for part in now.partitions}
    for node in now.nodes:
        for name in node.get("Partitions", "").split(","):
            shares_of_types = {
                (gpu_type, shares) for gpu_type, _, shares in divided_gpus(node, gres) if shares
            }
            found.setdefault(name, set()).update(shares_of_types)
    found.pop("", None)
    return found


def _are_ours(now: Snapshot, keys: Iterable[str]) -> bool:
    """Whether one of these hooks is ours: by its folder, or by what it holds, where that was seen."""
    seen = now.here.facts.get("ours", ()) if now.here else ()
    return any(key in seen or "/gpumem/" in (value_of(now.config, key) or "") for key in keys)


def _file_of(key: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower() + ".sh"


def _shares(found: Set[Tuple[str, int]]) -> str:
    return ", ".join(f"{gpu_type or 'gpu'} with {units}" for gpu_type, units in sorted(found)) or "no shares"


def _stale(what: str) -> Finding:
    return warning(
        "site-table",
        f"gpumem_site.lua does not match the cluster: {what}",
        "the plug-in caps and counts wrongly, or leaves jobs alone",
        _REFRESH,
    )
