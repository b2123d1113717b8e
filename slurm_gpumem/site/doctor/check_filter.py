"""Checks of Slurm's submission filter on this host: without cli_filter.lua it submits nothing."""

from __future__ import annotations

import os
from typing import Iterator, List

from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.data import FILTER_FILES, data_path
from slurm_gpumem.site.doctor.check_hooks import FILTER_PLUGIN, partition_modes
from slurm_gpumem.site.doctor.findings import Finding, Severity, note, warning
from slurm_gpumem.site.setup.lua_files import is_in_place, missing_functions
from slurm_gpumem.site.setup.slurm_conf import value_of
from slurm_gpumem.site.snapshot import Snapshot

FILTER, FILTER_FILE = FILTER_FILES
_REFUSES = "every sbatch, srun and salloc on this host is refused"
_AS_TYPED = "plain sbatch, srun and salloc share nothing: jobs go as they are typed"
_INSTALL = "gpumem setup --apply, and the same files on every other host that submits"


def filter_is_safe(now: Snapshot) -> Iterator[Finding]:
    """What CliFilterPlugins=lua needs beside slurm.conf; only hosts that submit need it."""
    if "lua" not in now.cli_filters:
        return
    if now.folder is None:
        yield note(
            "filter-unseen",
            "slurm.conf is not on this host",
            f"whether {FILTER} is where it must be is not known",
            "run gpumem doctor --here on the hosts that submit",
        )
        return
    for what in _stops_commands(now):
        yield Finding(
            Severity.WARNING if now.is_controller else Severity.CRITICAL,
            "filter-missing",
            what,
            _REFUSES,
            f"{_INSTALL}; at once: take lua out of CliFilterPlugins",
        )
    if FILTER not in now.files:
        return
    for function in missing_functions(FILTER, now.files[FILTER]):
        yield warning(
            "filter-broken",
            f"{FILTER} names no {function}",
            f"{_REFUSES}, unless another file defines it",
            "define it: return slurm.SUCCESS is enough",
        )
    if "gpumem" not in now.files[FILTER]:
        yield warning("filter-off", f"{FILTER} does not call {FILTER_FILE}", _AS_TYPED, _INSTALL)
        return
    theirs = now.files.get(FILTER_FILE)
    if theirs is None:
        yield warning("filter-off", f"{now.folder}/{FILTER_FILE} cannot be read", _AS_TYPED, _INSTALL)
    elif theirs != data_path("lua", FILTER_FILE).read_text():
        yield warning(
            "filter-older",
            f"{now.folder}/{FILTER_FILE} is of another version",
            "it and this version's command may not understand each other: jobs then go as they are typed",
            _INSTALL,
        )


def filter_loads(now: Snapshot) -> Iterator[Finding]:
    """Both files in each Lua interpreter of this host: Slurm is built with one of them."""
    if "lua" not in now.cli_filters or FILTER not in now.files:
        return
    if now.filter is None:
        yield note(
            "lua-untried",
            "no Lua interpreter here",
            f"whether {FILTER} loads was not tried",
            "install lua5.1",
        )
        return
    for name in FILTER_FILES:
        whys = {lua: dict(report.broken).get(name) for lua, report in now.filter.items()}
        broken = {lua: why for lua, why in whys.items() if why is not None}
        if not broken:
            continue
        everywhere = len(broken) == len(whys)
        lua, why = next(iter(broken.items()))
        yield Finding(
            Severity.CRITICAL if name == FILTER and everywhere else Severity.WARNING,
            "filter-broken",
            f"{name} does not load{'' if everywhere else f' with {lua}'}: {why}",
            _REFUSES if name == FILTER else _AS_TYPED,
            "fix the file" if name == FILTER else _INSTALL,
        )


def filter_is_in_use(now: Snapshot) -> Iterator[Finding]:
    """Modes in which jobs share that do not ask need the filter; its files alone do nothing."""
    if "lua" in now.cli_filters:
        return
    modes = [now.policy.get("mode", SHARING.default("mode")), *partition_modes(now).values()]
    needing = [mode for mode in modes if mode in ("known", "on")]
    unset = f"CliFilterPlugins={','.join(now.cli_filters) or '(unset)'}"
    if needing:
        yield warning(
            "filter-off",
            f'mode is "{needing[0]}" and {unset}',
            _AS_TYPED,
            "gpumem docs job_submit#plain-sbatch",
        )
    elif is_in_place(now.files):
        yield note(
            "filter-unused",
            f"{FILTER} is there and {unset}",
            "plain sbatch estimates nothing",
            f"CliFilterPlugins=lua, once {FILTER} is on every host that submits",
        )


def _stops_commands(now: Snapshot) -> Iterator[str]:
    """What makes Slurm's commands fail here."""
    path = f"{now.folder}/{FILTER}"
    if FILTER not in now.files:
        yield f"{path} is not there, or cannot be read"
    elif os.path.exists(path) and not os.stat(path).st_mode & 0o004:
        yield f"{path} cannot be read by users"
    plugins = value_of(now.config, "PluginDir") or ""
    folders: List[str] = [folder for folder in plugins.split(":") if os.path.isdir(folder)]
    if folders and not any(os.path.lexists(os.path.join(folder, FILTER_PLUGIN)) for folder in folders):
        yield f"{plugins} has no {FILTER_PLUGIN}"
