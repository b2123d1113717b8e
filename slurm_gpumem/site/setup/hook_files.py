"""The nodes' hooks as files for `gpumem setup --output`: as they ship, with their settings filled in."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Dict, FrozenSet, Mapping, Optional

from slurm_gpumem.data import HOOKS_FOLDER, data_path
from slurm_gpumem.site.setup.setup_notes import chained_hooks
from slurm_gpumem.site.setup.slurm_conf import value_of, words_of
from slurm_gpumem.site.snapshot import Snapshot

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
    "mail.sh",
)
_OTHERS = ("gpumem_end.c", "gpumem-sampler.service")


def hook_files(running: Mapping[str, str]) -> Dict[str, str]:
    """By their names in the folder of hooks."""
    shipped = {name: data_path("prolog", name).read_text() for name in (*SCRIPTS, *_OTHERS)}
    settings = hook_settings_file(running)
    return shipped if settings is None else {**shipped, "hooks.conf": settings}


def hook_settings_file(running: Mapping[str, str]) -> Optional[str]:
    """hooks.conf; one that this host has already stays as it is. None where it may not be read."""
    try:
        return Path(HOOKS_FOLDER, "hooks.conf").read_text()
    except PermissionError:
        return None
    except OSError:
        pass  # none yet
    lines = ["# On each host a Python that has slurm_gpumem:", f"python={shlex.quote(sys.executable)}"]
    state = value_of(running, "StateSaveLocation")
    lines += [f"state_dir={state}"] if state else []
    lines += [f"{key}={program}" for key, program in chained_hooks(running).items()]
    mail = value_of(running, "MailProg")
    lines += [f"next_mail={mail}"] if mail and not mail.startswith(HOOKS_FOLDER) else []
    return "\n".join([data_path("prolog", "hooks.conf.example").read_text().rstrip(), *lines, ""])


# Which proposed files are whole, and what is written of the others.
#
# A file with the name of the site's own gets copied over it sooner or later. So one that is not the site's
# whole file with our changes in it has another name, and says in its first lines what it is.

SUFFIX = ".part"
_SITE_FILES = {
    "slurm.conf": "Put these lines into your slurm.conf, in the place of those that say otherwise.",
    "gres.conf": "Put these lines into your gres.conf; if there is none, rename this file.",
    "job_submit.lua": "Put the lines marked gpumem at the end of yours; if there is none, rename this.",
    "cli_filter.lua": "Put the lines marked gpumem at the end of yours; if there is none, rename this.",
    "gpumem.toml": "Put these lines into your gpumem.toml; if there is none, rename this file.",
}


def parts_among(snapshot: Optional[Snapshot]) -> FrozenSet[str]:
    """Those files whose original was not seen, though there may be one."""
    if snapshot is None or "slurm.conf" not in snapshot.files:
        # Not where Slurm's files are: whatever is missing here may be there.
        return frozenset(_SITE_FILES)
    unseen = {name for name in _SITE_FILES if name not in snapshot.files}
    plugins = {"job_submit.lua": "JobSubmitPlugins", "cli_filter.lua": "CliFilterPlugins"}
    elsewhere = {name for name, key in plugins.items() if "lua" in words_of(snapshot.config, key)}
    hidden = {name for name in unseen if snapshot.folder and (snapshot.folder / name).exists()}
    return frozenset(unseen & (elsewhere | hidden))


def as_part(name: str, text: str) -> str:
    """The text with first lines that say what it is."""
    mark = "--" if name.endswith(".lua") else "#"
    return (
        f"{mark} Not a whole {name}: gpumem setup could not read the site's own. Do not copy it over yours.\n"
        f"{mark} {_SITE_FILES[name]}\n"
        f"{mark} `gpumem setup` as root where slurmctld runs writes the whole file.\n{text}"
    )


def named(name: str, parts: FrozenSet[str]) -> str:
    """A file's name as it is shown and written."""
    return name + SUFFIX if name in parts else name


def contents(files: Mapping[str, str], parts: FrozenSet[str]) -> Mapping[str, str]:
    """All files by the names that they are written with."""
    return {
        named(name, parts): as_part(name, text) if name in parts else text for name, text in files.items()
    }
