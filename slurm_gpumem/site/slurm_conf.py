"""What slurm.conf must say for sharing, and the smallest edit of the file that makes it so."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.site.nodes import expand_names
from slurm_gpumem.site.plan import SitePlan

PROLOG_TIMEOUT_S = 60
RECOVERY_HOOK = "epilog_slurmctld.sh"
_SETTING = re.compile(r"^\s*([A-Za-z]\w*)\s*=\s*(.*?)\s*$")


class Edit(NamedTuple):
    """An edited file and what could not be done in it."""

    text: str
    notes: Tuple[str, ...]


def wanted_settings(
    running: Mapping[str, str], plan: SitePlan, partitions: Sequence[Mapping[str, str]] = ()
) -> Dict[str, str]:
    """The settings that must change, with their new values; what is right already is left out."""
    wanted: Dict[str, str] = {}

    def add_words(key: str, *words: str) -> None:
        have = words_of(running, key)
        missing = [word for word in words if word.lower() not in (known.lower() for known in have)]
        if missing:
            wanted[key] = ",".join([*have, *missing])

    add_words("GresTypes", "gpu", plan.gres)
    # One kind of sharing per cluster: both would book the same GPU twice.
    other = "shard" if plan.gres == "mps" else "mps"
    types = wanted.get("GresTypes", value_of(running, "GresTypes") or "").split(",")
    if other in types:
        wanted["GresTypes"] = ",".join(word for word in types if word != other)
    if value_of(running, "SelectType") != "select/cons_tres":
        wanted["SelectType"] = "select/cons_tres"
    if not any(word.upper().startswith("CR_") for word in words_of(running, "SelectTypeParameters")):
        wanted["SelectTypeParameters"] = "CR_Core_Memory"
    if "slurmdbd" in (value_of(running, "AccountingStorageType") or "slurmdbd"):
        # Slurm adds its own TRES (cpu, mem, node ...) by itself.
        have = [
            word for word in words_of(running, "AccountingStorageTRES") if "/" in word and word[:3] != "fs/"
        ]
        missing = [word for word in ("gres/gpu", f"gres/{plan.gres}") if word not in have]
        if missing:
            wanted["AccountingStorageTRES"] = ",".join([*have, *missing])
        add_words("AccountingStoreFlags", "job_comment")
    if not {"alloc", "contain"} & {word.lower() for word in words_of(running, "PrologFlags")}:
        add_words("PrologFlags", "Alloc")
    add_words("JobSubmitPlugins", "lua")
    if value_of(running, "PrologEpilogTimeout") in (None, "65534", "INFINITE", "infinite"):
        wanted["PrologEpilogTimeout"] = str(PROLOG_TIMEOUT_S)
    per_cpu = _memory_per_cpu(plan)
    everywhere = bool(partitions) and all(map(has_default_memory, partitions))
    if per_cpu and not everywhere and not has_default_memory(running):
        wanted["DefMemPerCPU"] = str(per_cpu)
    return wanted


def has_default_memory(settings: Mapping[str, str]) -> bool:
    """Whether a job that names no memory gets something else than all of a node's."""
    return any(
        (value_of(settings, key) or "0") not in ("0", "UNLIMITED")
        for key in ("DefMemPerCPU", "DefMemPerNode")
    )


def value_of(settings: Mapping[str, str], key: str) -> Optional[str]:
    """A setting as `scontrol show config` prints it; None for "(null)", nothing and absence."""
    value = settings.get(key, "").strip()
    return None if value in ("", "(null)", "none", "N/A") else value


def words_of(settings: Mapping[str, str], key: str) -> List[str]:
    """The comma-separated words of a setting."""
    return [word.strip() for word in (value_of(settings, key) or "").split(",") if word.strip()]


def edit_slurm_conf(text: str, settings: Mapping[str, str], gres: Mapping[str, str]) -> Edit:
    """The file with these settings, and with `gres` (node name → Gres=) on its NodeName lines."""
    left = dict(settings)
    notes: List[str] = []
    done: List[str] = []
    lines: List[str] = []
    for line in text.splitlines():
        match = _SETTING.match(line)
        key = next((key for key in left if match and match[1].lower() == key.lower()), None)
        if match and match[1].lower() == "nodename":
            line = _edit_node(line, gres, done, notes)
        elif key:
            line = f"{key}={left.pop(key)}"
        lines.append(line)
    if left:
        lines += ["", "# Sharing of GPUs", *(f"{key}={value}" for key, value in left.items())]
    missing = [node for node in gres if node not in done]
    if missing:
        notes.append(
            f"slurm.conf: no NodeName line for {', '.join(missing)}; add it with Gres={gres[missing[0]]}"
        )
    return Edit("\n".join([*lines, ""]), tuple(notes))


def running_as_conf(running: Mapping[str, str], keys: Sequence[str], gres: Mapping[str, str]) -> str:
    """What is running, as lines of slurm.conf: for a cluster whose file cannot be read here."""
    lines = [f"{key}={value_of(running, key)}" for key in keys if value_of(running, key)]
    return "\n".join([*lines, *(f"NodeName={node} Gres={words}" for node, words in gres.items()), ""])


def _edit_node(line: str, gres: Mapping[str, str], done: List[str], notes: List[str]) -> str:
    name = re.search(r"(?i)NodeName\s*=\s*(\S+)", line)
    names = expand_names(name[1]) if name else []
    values = {gres.get(node) for node in names}
    done += [node for node in names if node in gres]
    if not values - {None}:
        return line
    if len(values) > 1:
        notes.append(
            f"slurm.conf: split the line of {name[1] if name else ''}: its nodes differ in their GPUs"
        )
        return line
    wanted = values.pop() or ""
    present = re.search(r"(?i)(\sGres\s*=\s*)(\S+)", line)
    if not present:
        return f"{line.rstrip()} Gres={wanted}"
    others = [
        word for word in present[2].split(",") if word.split(":")[0].lower() not in ("gpu", "shard", "mps")
    ]
    return line[: present.start(2)] + ",".join([wanted, *others]) + line[present.end(2) :]


def _memory_per_cpu(plan: SitePlan) -> int:
    known = [group for group in plan.groups if group.cpus and group.memory_mib]
    return min((group.memory_mib // group.cpus for group in known), default=0)
