"""A site's job_submit.lua and cli_filter.lua with our lines in them, and the filter's files."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping

from slurm_gpumem.data import HOOKS_CONF, data_path
from slurm_gpumem.site.setup.hook_files import hook_settings_file
from slurm_gpumem.site.setup.slurm_conf import words_of

FILTER, FILTER_FILE = "cli_filter.lua", "gpumem_filter.lua"
_FUNCTIONS = {
    "job_submit.lua": ("slurm_job_submit",),
    FILTER: ("slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit"),
}
"""What we look for in a site's own file; without one of the filter's three, Slurm refuses every job."""
CONFIGLESS_NOTE = (
    "plain sbatch: slurmctld hands out slurm.conf (enable_configless), but not the filter's files: a host "
    "without them would submit nothing, so the filter is left out (gpumem docs job_submit)"
)
_LAST_RETURN = re.compile(r"^return\b[^\n]*\n?(?:[ \t]*(?:--[^\n]*)?\n)*[ \t]*(?:--[^\n]*)?\Z", re.MULTILINE)
"""Lua allows nothing after it."""


def with_our_lines(
    name: str, current: Mapping[str, str], plugins: str, running: Mapping[str, str], notes: List[str]
) -> str:
    """The site's own file with our lines in it, or our example where it has none."""
    example = data_path("lua", name).read_text()
    text = current.get(name, example)
    if text != example and running and "lua" not in words_of(running, plugins):
        notes.append(f"{name} is there and not in use now; {plugins}=lua puts its own rules in use too")
    if "gpumem" in text:
        return text
    missing = missing_functions(name, text)
    if missing:
        notes.append(f"{name}: no {' and no '.join(missing)} found; put in the marked lines by hand")
        return text
    # At the end: the site's rules see requests as users wrote them, also those that match `gpu`.
    ours = "".join(line for line in example.splitlines(keepends=True) if line.endswith("-- gpumem\n"))
    last = _LAST_RETURN.search(text)
    end = len(text) if last is None else last.start()
    between = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + between + ours + text[end:]


def missing_functions(name: str, text: str) -> List[str]:
    """Functions that Slurm wants of such a file and that are not named in it."""
    return [function for function in _FUNCTIONS[name] if function not in text]


def is_configless(running: Mapping[str, str]) -> bool:
    """Whether hosts get slurm.conf of slurmctld, and no filter with it that is not theirs already."""
    parameters = words_of(running, "SlurmctldParameters")
    return "enable_configless" in parameters and "lua" not in words_of(running, "CliFilterPlugins")


def is_in_place(current: Mapping[str, str]) -> bool:
    """Whether this host has all that slurm.conf's CliFilterPlugins=lua needs."""
    text = current.get(FILTER, "")
    there = {FILTER_FILE, HOOKS_CONF} <= set(current)
    return there and "gpumem" in text and not missing_functions(FILTER, text)


def filter_files(
    current: Mapping[str, str], running: Mapping[str, str], notes: List[str], *, applies: bool = False
) -> Dict[str, str]:
    """What hosts need that submit jobs, before slurm.conf names the filter."""
    where = "every host that submits (login nodes, compute nodes whose jobs call sbatch or srun)"
    three = f"{FILTER}, {FILTER_FILE} and {HOOKS_CONF} beside slurm.conf on {where}"
    files = {
        FILTER: with_our_lines(FILTER, current, "CliFilterPlugins", running, notes),
        FILTER_FILE: data_path("lua", FILTER_FILE).read_text(),
    }
    # The site's, once it is there: Python may be elsewhere on login nodes.
    settings = current.get(HOOKS_CONF) or hook_settings_file(running)
    files.update({} if settings is None else {HOOKS_CONF: settings})
    if "lua" in words_of(running, "CliFilterPlugins"):
        if any(current.get(name) != text for name, text in files.items()):
            notes.append(f"plain sbatch: put {three}")
    elif missing_functions(FILTER, files[FILTER]):
        notes.append(
            f"plain sbatch: {FILTER} must define {', '.join(missing_functions(FILTER, files[FILTER]))}, too: "
            "Slurm refuses every submission without it. Then run gpumem setup again"
        )
    elif applies:
        notes.append(
            f"plain sbatch: {three}, before slurm.conf is: without {FILTER} a host refuses every sbatch, "
            "srun and salloc. No daemon needs a restart for it. --no-cli-filter leaves it out"
        )
    elif is_in_place(current):
        notes.append(
            f"plain sbatch, second step: CliFilterPlugins=lua only when there are {three}: a host without "
            f"{FILTER} refuses every sbatch, srun and salloc. No daemon needs a restart. Undo: first that "
            "line, everywhere, then the files. --no-cli-filter leaves it out"
        )
    else:
        notes.append(
            f"plain sbatch, first step: put {three}. That changes nothing. Then run gpumem setup again: it "
            "proposes CliFilterPlugins=lua. --no-cli-filter leaves both out"
        )
    return files
