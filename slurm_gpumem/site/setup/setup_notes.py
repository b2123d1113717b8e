"""What an admin must know beside the diff: hooks that the site has, restarts, defaults, missing plug-ins."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Set

from slurm_gpumem.data import HOOKS_FOLDER
from slurm_gpumem.site.doctor.check_hooks import FILTER_PLUGIN, LUA_PLUGIN
from slurm_gpumem.site.doctor.probe_host import read_text
from slurm_gpumem.site.queue_order import WORD
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import shares_have_types
from slurm_gpumem.site.setup.slurm_conf import (
    DEFAULT_TIME,
    RECOVERY_HOOK,
    Memory,
    value_of,
    without_time_limit,
    words_of,
)
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.state.nodes import Record

_CHAINED = {
    "Prolog": "next_prolog",
    "Epilog": "next_epilog",
    "TaskProlog": "next_task_prolog",
    "TaskEpilog": "next_task_epilog",
    "EpilogSlurmctld": "next_epilog_slurmctld",
}
_SCRIPTS = {
    "Prolog": "prolog.sh",
    "Epilog": "epilog.sh",
    "TaskProlog": "task_prolog.sh",
    "TaskEpilog": "task_epilog.sh",
    "EpilogSlurmctld": RECOVERY_HOOK,
}
HOOKS_NOTE = (
    "hooks: install slurm-gpumem-node on every node with GPUs first: Slurm drains a node whose Prolog is "
    "missing. scontrol reconfigure has them run; EpilogSlurmctld needs a restart of slurmctld"
)
_OURS = re.compile(rf"{HOOKS_FOLDER}/|gpumem")


def recovery_notes(running: Mapping[str, str]) -> List[str]:
    """The lines that let a job be run again after out of memory: the site's to add, with the node's hooks."""
    hook = value_of(running, "EpilogSlurmctld")
    if hook is not None and hook.endswith(RECOVERY_HOOK):
        return []
    return [
        f"for jobs to be run again after out of memory: EpilogSlurmctld={HOOKS_FOLDER}/{RECOVERY_HOOK} and "
        f"TaskEpilog={HOOKS_FOLDER}/task_epilog.sh (gpumem docs recovery)",
        *(note for key in _CHAINED for note in _kept(key, running)),
    ]


def time_limit_notes(plan: SitePlan, partitions: Sequence[Mapping[str, str]]) -> List[str]:
    """What lets small shares flow around a large one that waits: the site's to choose."""
    shared = {name for group in plan.groups for name in group.partitions}
    endless = without_time_limit(part for part in partitions if part["PartitionName"] in shared)
    where = f"partition {', '.join(endless)}"
    return [f"{where} has no time limit: {DEFAULT_TIME} (gpumem docs placement)"] if endless else []


def instance_notes(plan: SitePlan) -> List[str]:
    """What does not work on nodes with MIG instances beside whole GPUs."""
    return [
        f"{group.nodes}: srun fails in jobs with shares there, beside MIG instances (gpumem docs mig)"
        for group in plan.groups
        if not shares_have_types(plan, group) and not all(gpus.instance for gpus in group.gpus)
    ]


def level_notes(partitions: Sequence[str]) -> List[str]:
    """What LLN does to jobs on several nodes."""
    return [
        f"partition {name}: LLN=YES gives a job the node with the most idle CPUs, so that none shares a GPU "
        "while another is idle. Leave it out where jobs need several whole nodes, and lower max_slowdown to "
        "2 (gpumem docs placement)"
        for name in partitions
    ]


def chained_hooks(running: Mapping[str, str]) -> Dict[str, str]:
    """Lines of hooks.conf for the hooks that the site has and that ours run after themselves."""
    found = {_CHAINED[key]: _programs(key, running) for key in _CHAINED}
    return {name: values[0] for name, values in found.items() if _is_one_program(values)}


def hook_settings(running: Mapping[str, str]) -> Dict[str, str]:
    """The lines of slurm.conf that run our hooks; the site's own stay (`recovery_notes` says how)."""
    free = {key: name for key, name in _SCRIPTS.items() if not _programs(key, running)}
    found = {key: f"{HOOKS_FOLDER}/{name}" for key, name in free.items()}
    wanted = {key: path for key, path in found.items() if value_of(running, key) is None}
    if wanted and not {"alloc", "contain"} & {word.lower() for word in words_of(running, "PrologFlags")}:
        wanted["PrologFlags"] = ",".join([*words_of(running, "PrologFlags"), "Alloc"])
    return wanted


def _programs(key: str, running: Mapping[str, str]) -> List[str]:
    """The site's own programs of a hook, without ours."""
    values = [
        value for name, value in running.items() if re.fullmatch(rf"{key}\[[0-9]+\]", name) and value
    ] or [value for value in [value_of(running, key)] if value]
    return [value for value in values if not _OURS.search(value) and "gpumem" not in (read_text(value) or "")]


def _is_one_program(values: Sequence[str]) -> bool:
    return len(values) == 1 and not re.search(r"[*?\[]", values[0]) and not Path(values[0]).is_dir()


def _kept(key: str, running: Mapping[str, str]) -> List[str]:
    """How a hook that the site has stays in use beside ours."""
    values = _programs(key, running)
    if not values:
        return []
    if _is_one_program(values):
        line = f"{_CHAINED[key]}={values[0]}"
        return [f"{key}={values[0]} stays in use with {line} in {HOOKS_FOLDER}/hooks.conf"]
    folder = Path(values[0])
    folder = folder if folder.is_dir() else folder.parent
    ours = {"EpilogSlurmctld": RECOVERY_HOOK, "TaskProlog": "task_prolog.sh", "TaskEpilog": "task_epilog.sh"}
    script = ours.get(key, f"{key.lower()}.sh")
    return [
        f"{key} runs several programs ({', '.join(values)}): leave it as it is, and link "
        f"{HOOKS_FOLDER}/{script} into {folder}"
    ]


def memory_notes(memory: Mapping[str, Memory], shared: Set[str], nodes: Sequence[Record]) -> List[str]:
    """A default changes what jobs without --mem get: said for partitions that have nodes without GPUs too."""
    return [
        f"partition {name} has nodes without GPUs too: a job there that names no memory gets "
        f"{defaults['DefMemPerCPU']} MiB for each CPU instead of all of its node's"
        for name, defaults in memory.items()
        if any(name in n.get("Partitions", "").split(",") and n["NodeName"] not in shared for n in nodes)
    ]


def left_out_notes(planned: Collection[str], nodes: Sequence[Record]) -> List[str]:
    """Nodes with GPUs that are not part of the proposal: --gpu names only some."""
    left = [n["NodeName"] for n in nodes if "gpu:" in n.get("Gres", "") and n["NodeName"] not in planned]
    return (
        [f"{fold_names(left)}: has GPUs, is left out by --gpu or --partition and stays as it is"]
        if left
        else []
    )


def restart_notes(running: Mapping[str, str], settings: Mapping[str, str]) -> List[str]:
    """What must be restarted, and what is lost with it."""
    notes = []
    changed = [key for key in ("SelectType", "GresTypes") if key in settings]
    if changed:
        notes.append(
            f"{' and '.join(changed)}: slurmctld and every slurmd must be restarted, not only reconfigured"
        )
    if "PriorityType" in settings:
        notes.append(
            f"PriorityType: slurmctld must be restarted. Jobs keep their order, by age; {WORD} lets smaller "
            "ones go around one that waits for less than an hour (gpumem docs placement)"
        )
    if "SelectType" in settings:
        before = value_of(running, "SelectType") or "(unset)"
        given = f" with {settings['SelectTypeParameters']}" if "SelectTypeParameters" in settings else ""
        notes.append(
            f"{before} becomes select/cons_tres{given} on the whole cluster, because only that divides GPUs"
            + (
                ""
                if before == "select/cons_res"
                else "; slurmctld then forgets all jobs: empty the queue first"
            )
        )
    return notes


def has_lua_plugin(
    running: Mapping[str, str], slurm_root: Optional[Path] = None, plugin: str = LUA_PLUGIN
) -> Optional[bool]:
    """Whether Slurm can load job_submit/lua, or another; None where its plug-ins are not on this machine."""
    named = [folder for folder in (value_of(running, "PluginDir") or "").split(":") if folder]
    inside = [Path(f"{slurm_root}{folder}") for folder in named] if slurm_root else []
    here = [folder for folder in (*inside, *map(Path, named)) if folder.is_dir()]
    # A link in a tree may only lead somewhere inside it.
    return any(os.path.lexists(folder / plugin) for folder in here[: len(named)]) if here else None


def missing_plugin_note(running: Mapping[str, str], plugin: str = LUA_PLUGIN) -> str:
    """What to do where Slurm cannot load Lua plug-ins."""
    breaks = "slurmctld would not start with JobSubmitPlugins=lua"
    if plugin == FILTER_PLUGIN:
        breaks = "CliFilterPlugins=lua would stop every sbatch, srun and salloc"
    return (
        f"{plugin} is not in {value_of(running, 'PluginDir')}, and {breaks}; it is left out. gpusbatch asks "
        "for shares by itself; plain sbatch needs it. To have it, install slurm-wlm-basic-plugins (Debian), "
        "or build Slurm with lua-devel installed (rpm), and run gpumem setup again"
    )
